"""Sums of rows in an order that depends on their length alone. Import it late: it needs Triton.

PyTorch divides a sum by the shape of the whole tensor, so a row among 256 others may get other bits than by itself. A
population's statistics must be those of each agent alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers at once
EACH, MOST = 8192, 256  # numbers per program, and programs per row at most


@triton.jit
def _sum(x_at, found_at, size, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    x_at += row.to(tl.int64) * size
    total = tl.load(x_at + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < 0, other=0.0)
    for begin in range(0, CHUNK, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        total += tl.load(x_at + chunk * CHUNK + at, mask=(at < CHUNK) & (chunk * CHUNK + at < size), other=0.0)
    tl.store(found_at + row * tl.num_programs(0) + chunk, tl.sum(total, 0))


@triton.jit
def _activity(
    hidden_at, dead_at, rank_at, rows, STILL: tl.constexpr, U: tl.constexpr, BS: tl.constexpr, BU: tl.constexpr
):
    agent = tl.program_id(0)
    s = tl.arange(0, BS)
    u = tl.arange(0, BU)
    own = (s < rows)[:, None] & (u < U)[None, :]
    x = tl.load(hidden_at + (agent * rows + s[:, None]) * U + u[None, :], mask=own, other=0.0)
    mean = tl.sum(x, 0) / rows
    centred = tl.where(own, x - mean[None, :], 0.0)
    variance = tl.sum(centred * centred, 0) / rows
    gram = tl.dot(tl.trans(centred), centred, input_precision="ieee") / rows
    trace = tl.sum(variance, 0)
    square = tl.sum(tl.sum(gram * gram, 1), 0)
    still = tl.where((u < U) & (variance < STILL * STILL), 1.0, 0.0)
    tl.store(dead_at + agent, tl.sum(still, 0) / U)
    tl.store(rank_at + agent, tl.where(trace > 1e-12, trace * trace / tl.maximum(square, 1e-30), 0.0))


def layer_activities(hidden: Tensor, still: float) -> tuple[Tensor, Tensor]:
    """(share of dead units, effective rank) of each agent's layer `[agents, n, units]`: `math.instruments` has it for
    one. `still`: the std below which a unit is dead.
    """
    agents, rows, units = hidden.shape
    dead, rank = (torch.empty(agents, dtype=torch.float32, device=hidden.device) for _ in range(2))
    _activity[(agents,)](
        hidden.contiguous(), dead, rank, rows, STILL=still, U=units, BS=max(triton.next_power_of_2(rows), 16),
        BU=max(triton.next_power_of_2(units), 16),
    )  # fmt: skip
    return dead, rank


def row_sums(x: Tensor) -> Tensor:
    """The sum of each row `[..., n]` of float32 or float64, `[...]`."""
    x = x.contiguous()
    if x.data_ptr() % 16:  # Triton has another code for it, which adds in another order
        x = x.clone()
    size, rows = x.shape[-1], x.numel() // max(x.shape[-1], 1)
    chunks = min(max(triton.cdiv(size, EACH), 1), MOST)
    found = torch.empty((rows, chunks), dtype=x.dtype, device=x.device)
    _sum[(chunks, rows)](x, found, size, CHUNK=triton.cdiv(size, chunks), BLOCK=BLOCK)
    return found[:, 0].reshape(x.shape[:-1]) if chunks == 1 else row_sums(found).reshape(x.shape[:-1])
