"""Tasks for a critic that sees more than its actor: Gymnasium's envs with other physics in every episode.

The constants of an episode are drawn from its seed. A robot would not know them; a simulator does.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

# {env: {attribute: (least, most)}}, as factors on Gymnasium's own value
CONSTANTS: dict[str, dict[str, tuple[float, float]]] = {
    "CartPole-v1": {"force_mag": (0.5, 2.0), "gravity": (0.5, 2.0)},
    "Acrobot-v1": {"LINK_MASS_1": (0.5, 1.5), "LINK_MASS_2": (0.5, 1.5)},
    "Pendulum-v1": {"g": (0.5, 1.5), "m": (0.5, 1.5)},
    "LunarLander-v3": {"gravity": (0.3, 1.15)},
}


class Randomised(gym.Wrapper[Any, Any, Any, Any]):
    """Observation: what the env shows, as `sensor`, and the factors as `hidden` if they are `shown`."""

    def __init__(self, env: str, shown: bool) -> None:
        super().__init__(gym.make(env))
        self.shown, inner, ranges = shown, self.env.unwrapped, CONSTANTS[env]
        self.usual = {name: getattr(inner, name) for name in ranges}
        low, high = (np.array(ends, np.float32) for ends in zip(*ranges.values(), strict=True))
        parts: dict[str, spaces.Space[Any]] = {"sensor": self.env.observation_space}
        if shown:
            parts["hidden"] = spaces.Box(low, high)
        self.low, self.high, self.observation_space = low, high, spaces.Dict(parts)

    def _observe(self, seen: Any) -> dict[str, Any]:
        return {"sensor": seen} | ({"hidden": self.factors} if self.shown else {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng([seed, 1])  # other numbers than those of the env itself
        self.factors = self.rng.uniform(self.low, self.high).astype(np.float32)
        for (name, value), factor in zip(self.usual.items(), self.factors.tolist(), strict=True):
            setattr(self.env.unwrapped, name, value * factor)
        seen, info = self.env.reset(seed=seed, options=options)
        return self._observe(seen), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(seen), float(reward), terminated, truncated, info


def make(env: str, shown: bool = False) -> Randomised:
    return Randomised(env, shown)
