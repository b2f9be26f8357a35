"""An environment that breaks in one place, from the command line: `envs.py:Breaks`, `envs.py:Numbers`, …"""

import os
import sys

import gymnasium as gym
import numpy as np


class Breaks(gym.Wrapper):
    """CartPole until `where` (init, reset, step, render, close) is called for the `at`-th time; then it raises."""

    made = 0

    def __init__(self, where="step", at=1, render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self.where, self.left = where, at
        type(self).made += 1
        if where == "init" and type(self).made % at == 0:
            self.jam()

    def jam(self):
        raise ZeroDivisionError("the gear of my simulator jammed")

    def called(self, where):
        if self.where == where:
            self.left -= 1
            if self.left == 0:
                self.jam()

    def reset(self, **kwargs):
        self.called("reset")
        return self.env.reset(**kwargs)

    def step(self, action):
        self.called("step")
        return self.env.step(action)

    def render(self):
        self.called("render")
        return self.env.render()

    def close(self):
        self.called("close")
        return self.env.close()


class Exits(Breaks):
    """The same, but it calls `sys.exit(0)`, as an env does whose window was closed."""

    def jam(self):
        sys.exit(0)


class Forks(Breaks):
    """The same, but it forks. The child returns as if nothing had happened, or `leaves`: it calls `sys.exit(3)`."""

    def __init__(self, leaves=False, **how):
        self.leaves = leaves
        super().__init__(**how)

    def jam(self):
        child = os.fork()
        if child == 0 and self.leaves:
            sys.exit(3)
        if child:
            _, status = os.waitpid(child, 0)
            with open("children", "a", encoding="utf-8") as file:
                file.write(f"{os.waitstatus_to_exitcode(status)}\n")


class Numbers(gym.Wrapper):
    """CartPole whose `what` (observation, reward, final observation) is `value` at the `at`-th step."""

    def __init__(self, what="observation", value="nan", at=70, render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self.what, self.value, self.left = what, float(value), at

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.left -= 1
        if self.what == "observation" and self.left == 0:
            obs = np.array([obs[0], self.value, obs[2], obs[3]], np.float32)
        if self.what == "final observation" and self.left <= 0 and (terminated or truncated):
            obs = obs * np.float32(self.value)
        if self.what == "reward" and self.left == 0:
            reward = self.value
        return obs, reward, terminated, truncated, info
