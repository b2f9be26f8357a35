"""Sums along the time of a rollout, one thread per env. Import it late: it needs Triton.

The twins are `Operations.advantages` and `engine.collecting.device_episodes`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # envs per program
HOW = {"num_warps": 1}


@triton.jit
def _advantages(
    reward_at, value_at, next_at, terminated_at, truncated_at, valid_at, advantage_at, target_at, num_envs,
    gamma, decay, value_decay, each, T: tl.constexpr, SEGMENT: tl.constexpr, AGENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = env < num_envs
    if AGENTS:  # the numbers are in rows, one for each agent
        gamma = tl.load(gamma + env // each, mask=inside, other=0.0)
        decay = tl.load(decay + env // each, mask=inside, other=0.0)
        value_decay = tl.load(value_decay + env // each, mask=inside, other=0.0)
    advantage = tl.zeros((BLOCK,), tl.float32)
    correction = tl.zeros((BLOCK,), tl.float32)
    for step in range(T):
        t = T - 1 - step
        at = t * num_envs.to(tl.int64) + env
        terminated = tl.load(terminated_at + at, mask=inside, other=0) != 0
        done = terminated | (tl.load(truncated_at + at, mask=inside, other=0) != 0)
        value = tl.load(value_at + at, mask=inside, other=0.0)
        after = tl.where(terminated, 0.0, tl.load(next_at + at, mask=inside, other=0.0))
        delta = tl.load(reward_at + at, mask=inside, other=0.0) + gamma * after - value
        delta = tl.where(tl.load(valid_at + at, mask=inside, other=0) != 0, delta, 0.0)
        cut = done
        if SEGMENT > 0:
            cut = done | (t % SEGMENT == SEGMENT - 1)
        advantage = delta + tl.where(cut, 0.0, decay * advantage)
        correction = delta + tl.where(cut, 0.0, value_decay * correction)
        tl.store(advantage_at + at, advantage, mask=inside)
        tl.store(target_at + at, value + correction, mask=inside)


def advantages(
    columns: tuple[Tensor, ...], numbers: tuple[float, float, float] | Tensor, segment_length: int | None
) -> tuple[Tensor, Tensor]:
    """(GAE(λ), the critic's targets) from reward, value, next value, terminated, truncated and valid, `[T, N]` each.

    `numbers`: γ, γλ and the same for the targets; `[3, agents]` if the envs are those of several agents, side by side.
    """
    steps, num_envs = columns[0].shape
    found = [torch.empty_like(columns[0]) for _ in range(2)]
    agents = numbers.shape[1] if isinstance(numbers, Tensor) else 0
    _advantages[(triton.cdiv(num_envs, BLOCK),)](
        *columns, *found, num_envs, *numbers, num_envs // max(agents, 1),
        T=steps, SEGMENT=segment_length or 0, AGENTS=agents > 0, BLOCK=BLOCK, **HOW,
    )  # fmt: skip
    return found[0], found[1]


@triton.jit
def _running(
    reward_at, ended_at, valid_at, carried_at, ret_at, length_at, num_envs, T: tl.constexpr, BLOCK: tl.constexpr
):
    env = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = env < num_envs
    ret = tl.load(carried_at + env, mask=inside, other=0.0)
    length = tl.load(carried_at + num_envs + env, mask=inside, other=0.0)
    for t in range(T):
        at = t * num_envs.to(tl.int64) + env
        valid = tl.load(valid_at + at, mask=inside, other=0) != 0
        ret += tl.where(valid, tl.load(reward_at + at, mask=inside, other=0.0), 0.0)
        length += tl.where(valid, 1.0, 0.0)
        tl.store(ret_at + at, ret, mask=inside)
        tl.store(length_at + at, length, mask=inside)
        ended = tl.load(ended_at + at, mask=inside, other=0) != 0
        ret = tl.where(ended, 0.0, ret)
        length = tl.where(ended, 0.0, length)


def running_sums(reward: Tensor, ended: Tensor, valid: Tensor, carried: Tensor) -> Tensor:
    """Return and length so far of the episode of every step, `[2, T, N]` float64."""
    steps, num_envs = reward.shape
    found = torch.empty((2, steps, num_envs), dtype=torch.float64, device=reward.device)
    _running[(triton.cdiv(num_envs, BLOCK),)](
        reward, ended, valid, carried, found[0], found[1], num_envs, T=steps, BLOCK=BLOCK, **HOW
    )
    return found
