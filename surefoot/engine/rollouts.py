"""Computations over a collected rollout: scaled rewards, values, observed statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from surefoot.math.operations import OPERATIONS, Operations
from surefoot.types import Context

if TYPE_CHECKING:
    from surefoot.engine.contract import Actor
    from surefoot.envs.rewards import RewardNormalizer
    from surefoot.types import Array, Rollout


def scale_rewards(
    raw: Array,
    ends: tuple[Array, Array],
    valid: Array,
    factor: float,
    sign: bool,
    normalizer: RewardNormalizer | None,
    operations: Operations = OPERATIONS,
) -> Array:
    """The scaled rewards of a rollout; `ends`: terminated and truncated. All `[T, N]`."""
    scaled = (np.sign(raw) if sign else raw) * factor
    if normalizer is not None:
        normalizer.observe(scaled, ends[0] | ends[1], valid, operations)
        scaled = normalizer.scale(scaled)
    return scaled


def fill_values(rollout: Rollout, actor: Actor) -> Rollout:
    """Evaluate V for every state of the rollout, including final observations, in one batched pass."""
    value, inputs = actor.value, rollout.inputs
    steps, num_envs = inputs.shape[0] - 1, inputs.shape[1]
    with torch.no_grad():
        if rollout.context is None:
            states = inputs.flatten(0, 1)
            if rollout.final_index.shape[0]:
                states = torch.cat([states, rollout.final_inputs])
            values = value(states, None)
        else:
            values, after = value(inputs.flatten(0, 1), rollout.context), rollout.final_memory
            assert after is not None
            if len(after):  # each starts a sequence with the memory at that point
                begun = torch.zeros(1, len(after), dtype=torch.bool, device=after.device)
                values = torch.cat([values, value(rollout.final_inputs, Context(begun, after))])
    table = values[: (steps + 1) * num_envs].view(steps + 1, num_envs)
    next_value = table[1:]
    if rollout.final_index.shape[0]:
        next_value = next_value.clone()
        next_value.view(-1)[rollout.final_index] = values[(steps + 1) * num_envs :]
    rollout.value, rollout.next_value = table[:-1], next_value
    return rollout
