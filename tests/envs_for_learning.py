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


class TemptingBandit(gym.Env):
    """Two of four actions are legal, and the illegal ones would pay most; of the legal ones the better is the lower."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.mask = np.zeros(4, np.bool_)
        self.mask[self.np_random.choice(4, 2, replace=False)] = True
        return self.mask.astype(np.float32), {"action_mask": self.mask}

    def step(self, action):
        assert self.mask[action], "an illegal action"
        best = action == np.flatnonzero(self.mask)[0]
        return self.mask.astype(np.float32), float(best), True, False, {"action_mask": self.mask}


class Recall(gym.Env):
    """A cue in the first observation must be told `delay` steps later. Without memory: half of the time, at best."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, delay=20):
        self.delay = delay

    def observation(self):
        return np.array([self.cue if self.time == 0 else 0.0, self.time == self.delay], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.time = float(self.np_random.choice([-1.0, 1.0])), 0
        return self.observation(), {}

    def step(self, action):
        last = self.time == self.delay
        reward = float(last and (action == 1) == (self.cue > 0))
        self.time += 1
        return self.observation(), reward, last, False, {}


class Hybrid(gym.Env):
    """The observation says which tool to take and where to put it; reward is there for both only."""

    observation_space = spaces.Dict({"tool": spaces.Discrete(3), "place": spaces.Box(-1.0, 1.0, (1,), np.float32)})
    action_space = spaces.Dict({"take": spaces.Discrete(3), "put": spaces.Box(-1.0, 1.0, (1,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        place = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        self.wanted = {"tool": int(self.np_random.integers(3)), "place": place}
        return self.wanted, {}

    def step(self, action):
        assert self.action_space.contains(action)
        miss = float(abs(action["put"] - self.wanted["place"])[0])
        reward = (1.0 - miss) if action["take"] == self.wanted["tool"] else 0.0
        return self.wanted, reward, True, False, {}


class Catch(gym.Env):
    """A ball falls through a 7×7 picture; the paddle in the last row must be below it."""

    observation_space = spaces.Box(0, 255, (7, 7, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def observation(self):
        picture = np.zeros((7, 7, 1), np.uint8)
        picture[self.row, self.ball] = picture[6, self.paddle] = 255
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(7)), 3
        return self.observation(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action) - 1, 0), 6)
        self.row += 1
        last = self.row == 6
        return self.observation(), float(last and self.ball == self.paddle), last, False, {}


class Point(gym.Env):
    """A point on a line moves by its action and should stand at 1. Reward is minus what a better step would have won.

    Far out the best action lies at a bound, and the bounds are not symmetric. The best return is 0.
    """

    observation_space = spaces.Box(-3.0, 3.0, (1,), np.float32)
    action_space = spaces.Box(-0.3, 0.1, (1,), np.float32)

    def observation(self):
        return np.array([self.x], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.uniform(0.0, 2.0)), 0
        return self.observation(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        best = abs(self.x + np.clip(1.0 - self.x, -0.3, 0.1) - 1.0)
        self.x, self.time = self.x + float(action[0]), self.time + 1
        return self.observation(), float(best - abs(self.x - 1.0)), False, self.time == 10, {}


class Turning(gym.Env):
    """A point goes round a circle; which way, no single position tells. Reward for saying it, from the second on."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def observation(self):
        return np.array([np.cos(self.angle), np.sin(self.angle)], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angle, self.way, self.time = self.np_random.uniform(0.0, 2 * np.pi), int(self.np_random.integers(2)), 0
        return self.observation(), {}

    def step(self, action):
        right = self.time > 0 and int(action) == self.way
        self.angle += 0.7 * (2 * self.way - 1)
        self.time += 1
        return self.observation(), right / 5, self.time == 6, False, {}


class Spot(gym.Env):
    """One step: in which quarter of the picture is the bright spot?"""

    observation_space = spaces.Box(0, 255, (6, 6, 1), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.column = (int(i) for i in self.np_random.integers(6, size=2))
        self.picture = np.zeros((6, 6, 1), np.uint8)
        self.picture[self.row, self.column] = 255
        return self.picture, {}

    def step(self, action):
        right = int(action) == 2 * (self.row >= 3) + (self.column >= 3)
        return self.picture, float(right), True, False, {}
