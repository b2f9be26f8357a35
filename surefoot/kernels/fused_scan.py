"""Sums along the time of a rollout, by scans over many steps at once. Import it late: it needs Triton.

The twin is `Operations.advantages`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ENVS, STEPS = 32, 64  # of a program at once
# The order of a scan follows from how threads divide the steps, which must not depend on how many envs there are or
# where their rows begin: an agent among many has the bits that it has by itself.
PLACES = ["reward_at", "value_at", "next_at", "terminated_at", "truncated_at", "valid_at", "advantage_at", "target_at"]


@triton.jit
def _before(later, later_decay, x, decay):
    """x + decay · later: a step in front of those that follow it, and the decay over all of them."""
    return x + decay * later, decay * later_decay


@triton.jit(do_not_specialize=["num_envs", "each"], do_not_specialize_on_alignment=PLACES)
def _advantages(
    reward_at, value_at, next_at, terminated_at, truncated_at, valid_at, advantage_at, target_at, num_envs,
    gamma, decay, value_decay, each, T: tl.constexpr, SEGMENT: tl.constexpr, AGENTS: tl.constexpr,
    STEPS: tl.constexpr, ENVS: tl.constexpr,
):  # fmt: skip
    env = tl.program_id(0) * ENVS + tl.arange(0, ENVS)
    own = env < num_envs
    if AGENTS:  # the numbers are in rows, one for each agent
        gamma = tl.load(gamma + env // each, mask=own, other=0.0)[None, :]
        decay = tl.load(decay + env // each, mask=own, other=0.0)[None, :]
        value_decay = tl.load(value_decay + env // each, mask=own, other=0.0)[None, :]
    advantage = tl.zeros((ENVS,), tl.float32)
    correction = tl.zeros((ENVS,), tl.float32)
    CHUNKS: tl.constexpr = (T + STEPS - 1) // STEPS
    for chunk in range(CHUNKS):
        begin = (CHUNKS - 1 - chunk) * STEPS
        t = (begin + tl.arange(0, STEPS))[:, None]
        at = t.to(tl.int64) * num_envs + env[None, :]
        known = (t < T) & own[None, :]
        terminated = tl.load(terminated_at + at, mask=known, other=0) != 0
        cut = terminated | (tl.load(truncated_at + at, mask=known, other=0) != 0)
        value = tl.load(value_at + at, mask=known, other=0.0)
        after = tl.where(terminated, 0.0, tl.load(next_at + at, mask=known, other=0.0))
        delta = tl.load(reward_at + at, mask=known, other=0.0) + gamma * after - value
        delta = tl.where(tl.load(valid_at + at, mask=known, other=0) != 0, delta, 0.0)
        if SEGMENT > 0:
            cut = cut | (t % SEGMENT == SEGMENT - 1)
        none = tl.zeros((STEPS, ENVS), tl.float32)
        found, over = tl.associative_scan((delta, tl.where(cut, 0.0, none + decay)), 0, _before, reverse=True)
        missed, far = tl.associative_scan((delta, tl.where(cut, 0.0, none + value_decay)), 0, _before, reverse=True)
        found += over * advantage[None, :]
        missed += far * correction[None, :]
        tl.store(advantage_at + at, found, mask=known)
        tl.store(target_at + at, value + missed, mask=known)
        advantage = tl.sum(tl.where(t == begin, found, 0.0), 0)
        correction = tl.sum(tl.where(t == begin, missed, 0.0), 0)


def advantages(
    columns: tuple[Tensor, ...], numbers: tuple[float, float, float] | Tensor, segment_length: int | None
) -> tuple[Tensor, Tensor]:
    """(GAE(λ), the critic's targets) from reward, value, next value, terminated, truncated and valid, `[T, N]` each.

    `numbers`: γ, γλ and the same for the targets; `[3, agents]` if the envs are those of several agents, side by side.
    """
    steps, num_envs = columns[0].shape
    found = [torch.empty_like(columns[0]) for _ in range(2)]
    agents = numbers.shape[1] if isinstance(numbers, Tensor) else 0
    _advantages[(triton.cdiv(num_envs, ENVS),)](
        *columns, *found, num_envs, *numbers, num_envs // max(agents, 1),
        T=steps, SEGMENT=segment_length or 0, AGENTS=agents > 0, STEPS=min(STEPS, triton.next_power_of_2(steps)),
        ENVS=ENVS,
    )  # fmt: skip
    return found[0], found[1]
