"""The environments of the conformance checks. Stands alone: needs only NumPy and Gymnasium, not surefoot."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

LENGTH = 4  # steps of an episode


class Chain(gym.Env):
    """The states 0, 1, 2, 3, and after 3 comes 1 again. Actions do nothing, so V is a number that can be worked out.

    An episode starts at 0 and stops after four steps, when the state is 1: not the state before (3), not the state
    after the reset (0), and one whose V is learned in the middle of every episode. What a library takes for the
    future of the last step therefore shows in V(3).
    """

    observation_space = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
    action_space = spaces.Discrete(2)
    rewards: tuple[float, ...] = (-1.0, 1.5, 0.0, 0.5)  # on leaving each state
    ends: tuple[bool, bool] = (False, True)  # terminated, truncated

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        self.state, self.time = 0, 0
        return self.observation(), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        reward = self.rewards[self.state]
        self.state = self.state + 1 if self.state < LENGTH - 1 else 1
        self.time += 1
        terminated, truncated = (end and self.time == LENGTH for end in self.ends)
        return self.observation(), reward, terminated, truncated, {}

    def observation(self) -> NDArray[np.float32]:
        seen = np.zeros(LENGTH, np.float32)
        seen[self.state] = 1.0
        return seen


class Cut(Chain):
    """Stopped by the clock."""


class Steady(Cut):
    """Stopped by the clock, with reward 1 in every step: V = 1/(1 − γ)."""

    rewards = (1.0, 1.0, 1.0, 1.0)


class Ended(Chain):
    """Ends for good."""

    ends = (True, False)


class Both(Chain):
    """Ends for good in the very step in which the clock runs out."""

    ends = (True, True)


class Walk(gym.Env):
    """Random observations, rewards and lengths, all from the episode's seed. For resume and the first ratio."""

    observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(5, 40))
        return self.observation(), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        self.time += 1
        seen = self.observation()
        over = self.time == self.length
        return (
            seen,
            float(seen[0]) * (int(action) - 1),
            over and self.length % 2 == 0,
            over and self.length % 2 == 1,
            {},
        )

    def observation(self) -> NDArray[np.float32]:
        return self.np_random.normal(size=3).clip(-9.0, 9.0).astype(np.float32)
