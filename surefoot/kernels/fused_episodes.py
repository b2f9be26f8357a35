"""The episodes that ended in a rollout, as a table without gaps, and the sums that lead to it. Needs Triton.

The readable twins are in `engine.collecting.device_episodes`. A sum over a row of envs does not depend on the envs
beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, ROWS = 1024, 64  # envs, and steps, at once
ENVS, STEPS = 32, 64  # of a program that adds up rewards
# As in `fused_scan`: other layouts would add in another order.
PLACES = ["reward_at", "ended_at", "valid_at", "carried_at", "ret_at", "length_at"]


@triton.jit
def _later(ret, length, fresh, next_ret, next_length, next_fresh):
    """Two stretches of steps one after the other; where the second holds a beginning, the first does not count."""
    return (
        tl.where(next_fresh > 0, next_ret, ret + next_ret),
        tl.where(next_fresh > 0, next_length, length + next_length),
        tl.maximum(fresh, next_fresh),
    )


@triton.jit(do_not_specialize=["num_envs"], do_not_specialize_on_alignment=PLACES)
def _running(
    reward_at, ended_at, valid_at, carried_at, ret_at, length_at, num_envs, T: tl.constexpr, STEPS: tl.constexpr,
    ENVS: tl.constexpr,
):  # fmt: skip
    """Return and length so far of the episode of every step, by scans over some steps at once."""
    env = tl.program_id(0) * ENVS + tl.arange(0, ENVS)
    own = env < num_envs
    ret = tl.load(carried_at + env, mask=own, other=0.0)
    length = tl.load(carried_at + num_envs + env, mask=own, other=0.0)
    for begin in range(0, T, STEPS):
        t = (begin + tl.arange(0, STEPS))[:, None]
        at = t.to(tl.int64) * num_envs + env[None, :]
        known = (t < T) & own[None, :]
        valid = tl.load(valid_at + at, mask=known, other=0) != 0
        paid = tl.where(valid, tl.load(reward_at + at, mask=known, other=0.0), 0.0)
        before = tl.load(ended_at + at - num_envs, mask=known & (t > begin), other=0)
        fresh = (before != 0).to(tl.int32)
        totals, lengths, begun = tl.associative_scan((paid, tl.where(valid, 1.0, 0.0).to(tl.float64), fresh), 0, _later)
        totals += tl.where(begun > 0, 0.0, ret[None, :])
        lengths += tl.where(begun > 0, 0.0, length[None, :])
        tl.store(ret_at + at, totals, mask=known)
        tl.store(length_at + at, lengths, mask=known)
        last = t == tl.minimum(begin + STEPS, T) - 1
        over = tl.sum(tl.where(last, (tl.load(ended_at + at, mask=known, other=0) != 0).to(tl.int32), 0), 0) > 0
        ret = tl.where(over, 0.0, tl.sum(tl.where(last, totals, 0.0), 0))
        length = tl.where(over, 0.0, tl.sum(tl.where(last, lengths, 0.0), 0))


def running_sums(reward: Tensor, ended: Tensor, valid: Tensor, carried: Tensor) -> Tensor:
    """Return and length so far of the episode of every step, `[2, T, N]` float64, from rewards in float64."""
    steps, num_envs = reward.shape
    found = torch.empty((2, steps, num_envs), dtype=torch.float64, device=reward.device)
    _running[(triton.cdiv(num_envs, ENVS),)](
        reward, ended, valid, carried, found[0], found[1], num_envs, T=steps,
        STEPS=min(STEPS, triton.next_power_of_2(steps)), ENVS=ENVS,
    )  # fmt: skip
    return found


@triton.jit
def _count(done_at, valid_at, count_at, num_envs, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """The episodes that ended at each step."""
    t = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.int32)
    for chunk in range(CHUNKS):
        env = chunk * BLOCK + tl.arange(0, BLOCK)
        at = t.to(tl.int64) * num_envs + env
        done = tl.load(done_at + at, mask=env < num_envs, other=0) != 0
        total += (done & (tl.load(valid_at + at, mask=env < num_envs, other=0) != 0)).to(tl.int32)
    tl.store(count_at + t, tl.sum(total, 0))


@triton.jit
def _pack(
    count_at, done_at, valid_at, over_at, ret_at, length_at, into_at, number_at, carried_at, num_envs,
    T: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The rows of one step, behind those of all steps before it; the last step also gives what goes on."""
    t = tl.program_id(0)
    earlier = tl.zeros((ROWS,), tl.int32)
    for begin in range(0, T, ROWS):
        step = begin + tl.arange(0, ROWS)
        earlier += tl.load(count_at + step, mask=step < t, other=0)
    first = tl.sum(earlier, 0)
    for chunk in range(CHUNKS):
        env = chunk * BLOCK + tl.arange(0, BLOCK)
        known = env < num_envs
        at = t.to(tl.int64) * num_envs + env
        done = tl.load(done_at + at, mask=known, other=0) != 0
        ended = done & (tl.load(valid_at + at, mask=known, other=0) != 0)
        number = ended.to(tl.int32)
        row = into_at + (first + tl.cumsum(number, 0) - number).to(tl.int64) * 4
        ret, length = tl.load(ret_at + at, mask=known, other=0.0), tl.load(length_at + at, mask=known, other=0.0)
        over = tl.load(over_at + at, mask=ended, other=0) != 0
        tl.store(row, env.to(tl.float64), mask=ended)
        tl.store(row + 1, ret, mask=ended)
        tl.store(row + 2, length, mask=ended)
        tl.store(row + 3, tl.where(over, 0.0, 1.0).to(tl.float64), mask=ended)
        tl.store(carried_at + env, tl.where(done, 0.0, ret), mask=known & (t == T - 1))
        tl.store(carried_at + num_envs + env, tl.where(done, 0.0, length), mask=known & (t == T - 1))
        first += tl.sum(number, 0)
    tl.store(number_at, first.to(tl.int64), mask=t == T - 1)


def packed(
    reward: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor, carried: Tensor, into: Tensor
) -> tuple[Tensor, Tensor]:
    """(the number of episodes that ended `[]`, the new `carried`), as `packed_episodes` has it."""
    (steps, num_envs), sums = reward.shape, running_sums(reward, ended, valid, carried)
    count = torch.empty(steps, dtype=torch.int32, device=into.device)
    number, after = torch.empty((), dtype=torch.int64, device=into.device), torch.empty_like(carried)
    how = {"CHUNKS": triton.cdiv(num_envs, BLOCK), "BLOCK": BLOCK}
    _count[(steps,)](ended, valid, count, num_envs, **how)
    _pack[(steps,)](
        count, ended, valid, terminated, sums[0], sums[1], into, number, after, num_envs, T=steps, ROWS=ROWS, **how
    )  # fmt: skip
    return number, after
