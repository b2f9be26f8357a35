"""A whole env backend in one file, as an installed package would bring it: `toy:Walk`, `toy:Jump`."""

import gymnasium as gym
import numpy as np

from surefoot.envs.backends import Backend
from surefoot.errors import UsageError

STRIDES = {"Walk": 1, "Jump": 2}


class Walk(gym.Env):
    """On a line from -6 to 6; 1 is paid for leaving it on the right."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, stride=1, render_mode=None):
        self.stride, self.render_mode = stride, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(-2, 3))
        return self._seen(), {}

    def step(self, action):
        self.place += self.stride if action else -self.stride
        return self._seen(), float(self.place >= 6), abs(self.place) >= 6, False, {}

    def render(self):
        picture = np.zeros((16, 64, 3), np.uint8)
        picture[:, 4 * (self.place + 7)] = 255
        return picture

    def _seen(self):
        return np.array([np.clip(self.place / 6, -1.0, 1.0)], np.float32)


class Toy(Backend):
    name = "toy"

    def make_one(self, config, render_mode=None):
        kind = config.env.removeprefix("toy:")
        if kind not in STRIDES:
            raise UsageError(f"toy: has {', '.join(STRIDES)}, but no {kind!r}")
        return Walk(STRIDES[kind], render_mode=render_mode, **config.env_kwargs)

    def code(self, env_id):
        return ""  # the id chooses between two envs of this file

    def ids(self):
        return [f"toy:{kind}" for kind in STRIDES]
