"""Envs that are learned in moments, or that break."""

import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np


class Sign(gym.Env):
    """One step: the action should be the sign of the observation."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        return self.obs, float((self.obs[0] > 0) == bool(action)), True, False, {}


class Patient(Sign):
    """Waits while there is a file `wait` where the command was given."""

    def step(self, action):
        while os.path.exists("wait"):
            Path("waiting").touch()
            time.sleep(0.05)
        return super().step(action)


class Broken(Sign):
    def step(self, action):
        raise RuntimeError("the simulator broke")
