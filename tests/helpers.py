"""Tiny Gymnasium environments with known behaviour, good and bad."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class ScriptedEnv(gym.Env):
    """Plays `rewards` once per episode; the last step ends it with (`terminated`, `truncated`).

    The observation is (episode, step), so that every state of a run has a value of its own. Actions are recorded.
    """

    def __init__(self, rewards=(1.0, 2.0, 3.0), terminated=True, truncated=False, action_space=None, render_mode=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(2)
        self.rewards, self.ends, self.render_mode = tuple(rewards), (terminated, truncated), render_mode
        self.episode, self.time, self.actions, self.seeds = -1, 0, [], []

    def observation(self):
        return np.array([self.episode, self.time], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.time = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action):
        assert self.time < len(self.rewards), "stepped past the end of the episode"
        self.actions.append(action)
        reward = self.rewards[self.time]
        self.time += 1
        last = self.time == len(self.rewards)
        terminated, truncated = (end and last for end in self.ends)
        return self.observation(), reward, terminated, truncated, {"time": self.time}


class ConstantRewardEnv(ScriptedEnv):
    """Reward 1 for ever, one state, cut by the clock only: V = 1/(1−γ) everywhere."""

    def __init__(self, length=10, **kwargs):
        super().__init__(rewards=(1.0,) * length, terminated=False, truncated=True, **kwargs)

    def observation(self):
        return np.ones(2, np.float32)


class NoiseEnv(ScriptedEnv):
    """Observations drawn from the episode's seed; the episode's length is drawn too (2 to 6), never one of another's.

    Terminates after an even number of steps and is truncated after an odd one.
    """

    def observation(self):
        return self.np_random.normal(size=2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.length = int(self.np_random.integers(2, 7))
        return self.observation(), {}

    def step(self, action):
        self.time += 1
        end = self.time == self.length
        even = self.length % 2 == 0
        reward = float(self.np_random.normal()) + float(action)
        return self.observation(), reward, end and even, end and not even, {"time": self.time}


class ReusedBufferEnv(ScriptedEnv):
    """Returns one and the same array, overwritten at every step and reset."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.buffer = np.zeros(2, np.float32)

    def observation(self):
        self.buffer[:] = (self.episode, self.time)
        return self.buffer


class BadEnv(ScriptedEnv):
    """Misbehaves in one way, at step `at` of episode `in_episode` (0 is the reset).

    fault: nan_obs, inf_obs, wrong_shape, scalar_obs, nan_reward, raise, four_values, wrong_dtype.
    """

    def __init__(self, fault, at=2, in_episode=0, **kwargs):
        super().__init__(**kwargs)
        self.fault, self.at, self.in_episode = fault, at, in_episode

    @property
    def now(self):
        return self.episode == self.in_episode and self.time == self.at

    def observation(self):
        obs = super().observation()
        if not self.now:
            return obs
        wrong = {
            "nan_obs": np.array([np.nan, 0.0], np.float32),
            "inf_obs": np.array([0.0, np.inf], np.float32),
            "wrong_shape": np.zeros(3, np.float32),
            "scalar_obs": np.float32(7.0),
            "wrong_dtype": np.zeros(2, np.complex128),
        }
        if self.fault == "raise":
            raise ZeroDivisionError("the simulator broke")
        return wrong.get(self.fault, obs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.now and self.fault == "nan_reward":
            reward = float("nan")
        if self.now and self.fault == "four_values":
            return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info


def episode_rows(run):
    """The lines of a run's `episodes.csv` but for their last cell, the seconds, which are never the same twice."""
    return [line.rpartition(",")[0] for line in run.directory.episodes.read_text(encoding="utf-8").splitlines()]
