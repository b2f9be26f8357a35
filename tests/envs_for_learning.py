"""Environments whose solution is known in closed form."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Constant(gym.Env):
    """One state, reward 1, episodes of five steps that end in the given manner."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, ends="truncated"):
        self.ends, self.t = ends, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == 5
        return np.ones(1, np.float32), 1.0, over and self.ends == "terminated", over and self.ends == "truncated", {}


class Bandit(gym.Env):
    """One step; the observation says which of two arms pays 1, the other pays 0."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2, start=3)
    spec = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        return np.array([2.0 * self.side - 1.0], np.float32), {}

    def step(self, action):
        assert action in (3, 4)
        success = int(action) - 3 == self.side
        return np.zeros(1, np.float32), float(success), True, False, {"is_success": success}


class Target(gym.Env):
    """One step with a continuous action; reward is minus the squared distance to the observed target."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.target = float(self.np_random.choice([-0.8, 0.8]))
        return np.array([self.target], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), -((float(action[0]) - self.target) ** 2), True, False, {}
