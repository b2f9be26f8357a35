"""A task for a critic that sees more than its actor: hold a mass at the origin in a wind that changes every episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STEPS = 100
WIND = 0.7  # the strongest; the mass is pushed with at most 1


class HiddenWind(gym.Env[Any, Any]):
    """Observation: position and velocity as `sensor` and, if `shown`, the wind as `hidden`. Reward: −|position|."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        parts = {"sensor": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        if shown:
            parts["hidden"] = spaces.Box(-WIND, WIND, (1,), np.float32)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _observe(self) -> dict[str, Any]:
        seen = {"sensor": np.array([self.position, self.velocity], np.float32)}
        return seen | ({"hidden": np.array([self.wind], np.float32)} if self.shown else {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.velocity = 0, 0.0
        self.position, self.wind = (float(x) for x in self.np_random.uniform(-1.0, 1.0, 2) * (1.0, WIND))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        push = float(np.clip(action[0], -1.0, 1.0))
        self.velocity += 0.1 * (push + self.wind - 0.5 * self.velocity)
        self.position += 0.1 * self.velocity
        self.time += 1
        return self._observe(), -abs(self.position), False, self.time == STEPS, {}


def make(shown: bool = False) -> HiddenWind:
    return HiddenWind(shown)
