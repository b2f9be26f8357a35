"""Reward normalisation on a device, for envs of tensors. The reference is `RewardNormalizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from surefoot.envs.rewards import CLIP, reward_shape
from surefoot.math.device_moments import DeviceMoments
from surefoot.math.operations import OPERATIONS

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.envs.rewards import RewardState
    from surefoot.math.operations import Operations
    from surefoot.schema import Shape


class DeviceRewardNormalizer:
    """A `RewardNormalizer` whose returns and statistics stay on the device. Only a checkpoint reads them."""

    def __init__(self, num_envs: int, gamma: float, device: torch.device) -> None:
        exact = torch.float32 if device.type == "mps" else torch.float64
        self.gamma, self.moments = gamma, DeviceMoments((), device, exact)
        self.running = torch.zeros(num_envs, dtype=exact, device=device)  # G of each open episode

    def observe(self, reward: Tensor, done: Tensor, valid: Tensor, operations: Operations = OPERATIONS) -> None:
        """Update the statistics from a rollout, all `[T, N]`, in time order."""
        seen, running = operations.running_returns_on_device(reward, done, valid, self.gamma, self.running)
        self.running.copy_(running)
        self.moments.merge(seen.flatten(), valid.flatten(), operations.sum_)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that `observe` changes, in place."""
        return [self.running, *self.moments.tensors]

    def scale(self, reward: Tensor) -> Tensor:
        return (reward / (self.moments.var + 1e-8).sqrt()).clamp(-CLIP, CLIP)

    def restart(self) -> None:
        """All episodes were cut short (every env was reset)."""
        self.running.zero_()

    def forget(self, index: int) -> None:
        """Drop the open episode of one env."""
        self.running[index] = 0.0

    def state_dict(self) -> RewardState:
        running = self.running.to("cpu", torch.float64).numpy().copy()
        return {**self.moments.state_dict(), "running": running}

    def state_shape(self) -> Shape:
        return reward_shape(len(self.running))

    def load_state_dict(self, state: RewardState) -> None:
        self.moments.load_state_dict(state)
        self.running.copy_(torch.from_numpy(np.asarray(state["running"], np.float64)))
