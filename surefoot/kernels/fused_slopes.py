"""MLPs whose products are cuBLAS', with what is between two products as one kernel. Needs Triton.

    forward    h = f(x·Wᵀ + b)
    backward   dz = dh ⊙ f′ and db = Σ dz at once;  dW = dzᵀ·x,  dh′ = dz·W

For `--precision tf32`, where cuBLAS rounds to TensorFloat-32 in one product and `fused_wide` would need three. PyTorch
sums the gradient of a bias in a kernel of its own, which reads all of dz again and takes as long as a product. Here
every program adds the rows that it has in hand; these sums are added in a fixed order, and how rows are divided depends
on their number alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from surefoot.kernels.fused_linear import ACTIVATIONS, _padded, _to_z

HEIGHT, WIDTH = 16, 128  # of a tile, at most
PROGRAMS = 1056  # eight for each multiprocessor of a large GPU: enough loads under way


@triton.jit(do_not_specialize=["rows"])
def _slopes(
    dh_at, h_at, dz_at, sums_at, rows,
    N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TILES: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    db = tl.zeros((BM, BN), tl.float32)
    for tile in range(TILES):
        row = ((tl.program_id(1) * TILES + tile) * BM + tl.arange(0, BM)).to(tl.int64)
        inside = (row < rows)[:, None] & (n < N)[None, :]
        at = row[:, None] * N + n[None, :]
        dz = tl.load(dh_at + at, mask=inside, other=0.0)
        if ACTIVATION:
            dz = _to_z(dz, tl.load(h_at + at, mask=inside, other=0.0), ACTIVATION)
            tl.store(dz_at + at, dz, mask=inside)
        db += dz
    tl.store(sums_at + tl.program_id(1) * N + n, tl.sum(db, 0), mask=n < N)


def slopes(dh: Tensor, h: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """(dz, db) = (dh ⊙ f′, Σ dz), from the results h of f."""
    rows, outputs = h.shape
    width = min(WIDTH, _padded(outputs))
    across, tiles = triton.cdiv(outputs, width), triton.cdiv(max(1, rows), HEIGHT)
    each = triton.cdiv(tiles, max(1, min(PROGRAMS // across, tiles)))
    shares = triton.cdiv(tiles, each)
    dz = dh if activation == "none" else torch.empty_like(dh)
    sums = torch.empty((shares, outputs), dtype=torch.float32, device=h.device)
    _slopes[(across, shares)](
        dh, h, dz, sums, rows, N=outputs, BM=HEIGHT, BN=width, TILES=each, ACTIVATION=ACTIVATIONS.index(activation),
        num_warps=4,
    )  # fmt: skip
    return dz, sums.sum(0)


def activated(z: Tensor, activation: str) -> Tensor:
    """f(z), in its place."""
    functions = {"none": lambda z: z, "tanh": torch.tanh_, "relu": torch.relu_}
    functions["elu"] = lambda z: torch.nn.functional.elu(z, inplace=True)
    return functions[activation](z)


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    activations: tuple[str, ...]
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class RoundedMLP(torch.autograd.Function):
    """All layers for autograd. It has no second derivative."""

    @staticmethod
    def forward(ctx: Kept, x: Tensor, activations: tuple[str, ...], *parameters: Tensor) -> Tensor:
        """`parameters`: weight and bias of each layer."""
        weights, results = parameters[::2], [x]
        for weight, bias, activation in zip(weights, parameters[1::2], activations, strict=True):
            results.append(activated(torch.nn.functional.linear(results[-1], weight, bias), activation))
        ctx.save_for_backward(*weights, *results)
        ctx.activations = activations
        return results[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, dh: Tensor) -> tuple[Tensor | None, ...]:
        number, found = len(ctx.activations), list[Tensor]()
        weights, results = ctx.saved_tensors[:number], ctx.saved_tensors[number:]
        for at in reversed(range(number)):
            dz, db = slopes(dh.contiguous(), results[at + 1], ctx.activations[at])
            found[:0] = dz.T @ results[at], db
            if at or ctx.needs_input_grad[0]:
                dh = dz @ weights[at]
        return dh if ctx.needs_input_grad[0] else None, None, *found


def rounded_mlp(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], activations: Sequence[str]) -> Tensor:
    """What layers of (weight, bias) make of rows `[..., K]`, differentiable once."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    parameters = (tensor for layer in layers for tensor in layer)
    result: Tensor = RoundedMLP.apply(flat, tuple(activations), *parameters)
    return result.reshape(*x.shape[:-1], result.shape[-1])
