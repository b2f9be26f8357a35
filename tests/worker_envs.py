"""Envs for worker processes, by file name: `tests/worker_envs.py:Name`. Good ones of every space, and fatal ones."""

import ctypes
import os
import signal
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Noise(gym.Env):
    """Everything drawn from the episode's seed: observations, rewards, lengths (2 to 6), infos."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def show(self):
        return self.np_random.normal(size=2).astype(np.float32)

    def weigh(self, action):
        return float(action)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(2, 7))
        return self.show(), self.info()

    def info(self):
        return {"time": self.time, "pair": (1, 2.5), "array": np.arange(3), 7: np.float32(0.1), "none": None}

    def step(self, action):
        self.time += 1
        end, even = self.time == self.length, self.length % 2 == 0
        reward = self.np_random.normal() + self.weigh(action)
        return self.show(), reward, end and even, end and not even, self.info()


class Nested(Noise):
    """Dict observations, Dict actions with a float64 leaf, which float32 could not hold."""

    observation_space = spaces.Dict(
        {"x": spaces.Box(-np.inf, np.inf, (2,), np.float32), "in": spaces.Tuple([spaces.Discrete(3, start=5)])}
    )
    action_space = spaces.Dict(
        {"go": spaces.Discrete(4), "by": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(3)])}
    )

    def show(self):
        return {"x": super().show(), "in": (int(self.np_random.integers(5, 8)),)}

    def weigh(self, action):
        assert list(action) == ["by", "go"]
        assert self.action_space.contains(action), action
        return float(action["go"] + action["by"][0].sum() + action["by"][1].sum())


class Masked(Noise):
    """A mask in the info."""

    def info(self):
        return {"action_mask": np.array([True, self.time % 2 == 0, self.length > 3])}


class Lives(Noise):
    """Loses a life now and then, as an Atari game does."""

    def info(self):
        return {"life_lost": True} if self.time % 2 else {}


class Doubles(Noise):
    """Returns float64 where its space says float32, and infos that are no plain data."""

    def show(self):
        return self.np_random.normal(size=2)

    def info(self):
        return {"self": type(self)}


class Wide(Doubles):
    """Float64, as its space says."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class Image(Noise):
    observation_space = spaces.Box(0, 255, (5, 4, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (), np.float32)

    def show(self):
        return self.np_random.integers(0, 256, (5, 4, 3)).astype(np.uint8)


class Slow(Noise):
    """A millisecond per step, asleep or at work; or so many seconds."""

    def __init__(self, how="sleep"):
        self.how = how

    def step(self, action):
        if self.how != "busy":
            time.sleep(0.001 if self.how == "sleep" else self.how)
        else:
            until = time.perf_counter() + 0.001
            while time.perf_counter() < until:
                pass
        return super().step(action)


class Fatal(gym.Env):
    """Counts its steps; does something fatal in step `at` (0: the reset) of `episode`, in the env whose mark is absent.

    A file `mark`, if named, is made by the first env that dies, and keeps the others alive.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (), np.float32)  # a Discrete one would be asked for a mask before its time

    def __init__(self, how="raise", at=2, episode=0, mark=None, always=False, length=6):
        self.how, self.at, self.in_episode, self.mark, self.always = how, at, episode, mark, always
        self.episode, self.length = -1, length
        if how == "init":
            raise ZeroDivisionError("could not be made")

    def act_up(self):
        if self.time != self.at or (self.episode != self.in_episode and not self.always):
            return
        if self.mark is not None:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        match self.how:
            case "raise":
                raise ZeroDivisionError("the simulator broke")
            case "exit":
                os._exit(7)
            case "sysexit":
                sys.exit(5)
            case "segv":
                ctypes.string_at(0)
            case "kill" | "abrt" | "segv_signal":
                name = {"kill": "SIGKILL", "abrt": "SIGABRT", "segv_signal": "SIGSEGV"}[self.how]
                os.kill(os.getpid(), getattr(signal, name))
            case "hang":
                time.sleep(1000)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "fork_and_die":  # what is left holds the socket open
                if os.fork() == 0:
                    time.sleep(1000)
                os._exit(9)
            case "signals":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)

    def observation(self):
        if self.how == "flags":
            return np.array([sys.flags.optimize, "error" in sys.warnoptions], np.float32)
        return np.array([self.time, "torch" in sys.modules], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.act_up()
        return self.observation(), {}

    def step(self, action):
        self.time += 1
        self.act_up()
        return self.observation(), 1.0, self.time == self.length, False, {"pid": os.getpid()}

    def close(self):
        if self.how == "close":
            raise ZeroDivisionError("could not be closed")
        if self.how == "hang_close":
            time.sleep(1000)


class Told(Noise):
    """Tells the seed of its episode at the episode's end."""

    def reset(self, *, seed=None, options=None):
        self.told = seed
        return super().reset(seed=seed, options=options)

    def info(self):
        return {"seed": self.told}
