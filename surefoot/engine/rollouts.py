"""What is computed over a rollout once it is collected: rewards as they are learned from, values, what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from surefoot.envs.rewards import running_returns
from surefoot.types import Context

if TYPE_CHECKING:
    from surefoot.envs.rewards import RewardNormalizer
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array, Rollout

    Value: TypeAlias = Callable[[Tensor, Context | None], Tensor]


def scale_rewards(
    raw: Array,
    ends: tuple[Array, Array],
    valid: Array,
    factor: float,
    sign: bool,
    normalizer: RewardNormalizer | None,
    compiled: Any = None,
) -> Array:
    """The rewards of a rollout as they are learned from; `ends`: terminated and truncated. All `[T, N]`."""
    scaled = (np.sign(raw) if sign else raw) * factor
    if normalizer is not None:
        scan = running_returns if compiled is None else compiled.running_returns
        normalizer.observe(scaled, ends[0] | ends[1], valid, scan)
        scaled = normalizer.scale(scaled)
    return scaled


def fill_values(rollout: Rollout, policy: ActorCritic, value: Value | None = None) -> Rollout:
    """Evaluate V of every state of the rollout, the final observations included, in one batched pass.

    `value`: how; None: by the policy itself.
    """
    value = value or policy.value
    inputs = rollout.inputs
    steps, num_envs = inputs.shape[0] - 1, inputs.shape[1]
    with torch.no_grad():
        if rollout.context is None:
            states = inputs.flatten(0, 1)
            if len(rollout.final_index):
                states = torch.cat([states, rollout.final_inputs])
            values = value(states, None)
        else:
            values, after = value(inputs.flatten(0, 1), rollout.context), rollout.final_memory
            assert after is not None
            if len(after):  # each the first of a sequence that goes on from what was remembered there
                begun = torch.zeros(1, len(after), dtype=torch.bool, device=after.device)
                values = torch.cat([values, value(rollout.final_inputs, Context(begun, after))])
    table = values[: (steps + 1) * num_envs].view(steps + 1, num_envs)
    next_value = table[1:]
    if len(rollout.final_index):
        next_value = next_value.clone()
        next_value.view(-1)[rollout.final_index] = values[(steps + 1) * num_envs :]
    rollout.value, rollout.next_value = table[:-1], next_value
    return rollout


def valid_observations(rollout: Rollout) -> Tensor:
    """The observations of the rollout's transitions, `[B, ...]`, for the normaliser."""
    return rollout.obs[:-1][rollout.valid]
