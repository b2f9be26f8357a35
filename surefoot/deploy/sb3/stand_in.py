"""An env with the right spaces and nothing in it, for a model whose env is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

from surefoot.errors import UsageError
from surefoot.spaces.masks import ActionMasks

if TYPE_CHECKING:
    from surefoot.types import Array, GymSpace, Info


class StandIn(gym.Env[object, object]):
    """A run can be built around it, but not trained in it."""

    def __init__(self, observations: GymSpace, actions: GymSpace) -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[object, Info]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: object) -> tuple[object, float, bool, bool, Info]:
        raise UsageError("the env of this imported model is not known")


class MaskedStandIn(StandIn):
    def action_masks(self) -> Array:
        return np.ones(ActionMasks(self.action_space).size, np.bool_)
