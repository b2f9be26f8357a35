"""The episodes that ended in a rollout of one kernel, as a table without gaps. Import it late: it needs Triton.

The readable twin is `engine.collecting.device_episodes.packed_episodes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.kernels.fused_rollout import Played

BLOCK, ROWS = 1024, 64  # envs, and steps, at once


@triton.jit
def _count(done_at, count_at, num_envs, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """The episodes that ended at each step."""
    t = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.int32)
    for chunk in range(CHUNKS):
        env = chunk * BLOCK + tl.arange(0, BLOCK)
        at = t.to(tl.int64) * num_envs + env
        total += (tl.load(done_at + at, mask=env < num_envs, other=0) != 0).to(tl.int32)
    tl.store(count_at + t, tl.sum(total, 0))


@triton.jit
def _pack(
    count_at, done_at, over_at, ret_at, length_at, into_at, number_at, num_envs, T: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The rows of one step, behind those of all steps before it."""
    t = tl.program_id(0)
    earlier = tl.zeros((ROWS,), tl.int32)
    for begin in range(0, T, ROWS):
        step = begin + tl.arange(0, ROWS)
        earlier += tl.load(count_at + step, mask=step < t, other=0)
    first = tl.sum(earlier, 0)
    for chunk in range(CHUNKS):
        env = chunk * BLOCK + tl.arange(0, BLOCK)
        at = t.to(tl.int64) * num_envs + env
        done = (tl.load(done_at + at, mask=env < num_envs, other=0) != 0).to(tl.int32)
        ended = done > 0
        row = into_at + (first + tl.cumsum(done, 0) - done).to(tl.int64) * 4
        over = tl.load(over_at + at, mask=ended, other=0) != 0
        tl.store(row, env.to(tl.float64), mask=ended)
        tl.store(row + 1, tl.load(ret_at + at, mask=ended, other=0.0), mask=ended)
        tl.store(row + 2, tl.load(length_at + at, mask=ended, other=0.0), mask=ended)
        tl.store(row + 3, tl.where(over, 0.0, 1.0).to(tl.float64), mask=ended)
        first += tl.sum(done, 0)
    tl.store(number_at, first.to(tl.int64), mask=t == T - 1)


def packed(played: Played, into: Tensor) -> Tensor:
    """The number of episodes that ended, `[]`. The first rows of `into`, `[T·N + 1, 4]` float64, receive env, return,
    length and whether the clock ended it, in the order of steps and envs.
    """
    steps, num_envs = played.done.shape
    count = torch.empty(steps, dtype=torch.int32, device=into.device)
    number = torch.empty((), dtype=torch.int64, device=into.device)
    how = {"CHUNKS": triton.cdiv(num_envs, BLOCK), "BLOCK": BLOCK}
    _count[(steps,)](played.done, count, num_envs, **how)
    _pack[(steps,)](
        count, played.done, played.terminated, played.ends.ret, played.ends.length, into, number, num_envs,
        T=steps, ROWS=ROWS, **how,
    )  # fmt: skip
    return number
