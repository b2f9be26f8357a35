"""The tasks of defaults.py, trained without presets. Does not import surefoot, because peers' environments use it too.

Each toy env tests one kind of space and gives a reward at every step; the others are Gymnasium's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

TOY_STEPS = 100


class Match(gym.Env[Any, Any]):
    """Do what the observation says, 100 times. Reward in [0, 1]: the fraction that was right, or 1 − mean |a − wanted|.

    Random actions earn 33 (Box), 50 (MultiBinary), about 26 (MultiDiscrete) and 12.5 (Discrete) of 100.
    """

    kinds: ClassVar[dict[str, spaces.Space[Any]]] = {
        "box": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "binary": spaces.MultiBinary(8),
        "choices": spaces.MultiDiscrete([3, 4, 5]),
        "choice": spaces.Discrete(8),
    }

    def __init__(self, kind: str) -> None:
        self.observation_space = self.action_space = self.kinds[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        off = np.asarray(action, np.float64) - self.wanted
        right = 1.0 - np.abs(off).mean() if isinstance(self.action_space, spaces.Box) else (off == 0).mean()
        self.time += 1
        return self._draw(), float(right), False, self.time == TOY_STEPS, {}

    def _draw(self) -> Any:
        space, random = self.action_space, self.np_random
        if isinstance(space, spaces.Box):
            self.wanted = random.uniform(-1.0, 1.0, space.shape).astype(np.float32)
        elif isinstance(space, spaces.Discrete):
            self.wanted = np.int64(random.integers(space.n))
        else:
            high = space.nvec if isinstance(space, spaces.MultiDiscrete) else 2
            self.wanted = random.integers(high, size=space.shape).astype(space.dtype)
        return self.wanted


class Reach(gym.Env[Any, Any]):
    """Walk to a goal in a square; the observation is a Dict that includes the length of a step. Reward: −distance."""

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "goal": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "stride": spaces.Discrete(3),
        }
    )
    action_space = spaces.Discrete(5)
    moves = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.position, self.goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        self.stride = int(self.np_random.integers(3))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        length = 0.1 * (1 + self.stride)
        self.position = np.clip(self.position + length * self.moves[int(action)], -1.0, 1.0)
        self.time += 1
        distance = float(np.linalg.norm(self.position - self.goal))
        return self._observation(), -distance, False, self.time == TOY_STEPS // 2, {}

    def _observation(self) -> dict[str, Any]:
        return {"position": self.position, "goal": self.goal, "stride": self.stride}


@dataclass(frozen=True)
class Task:
    """`low` and `high`: what random play scores, and a good score; they only set the scale of the summary."""

    env: str  # an id, or a class of this file and its argument
    steps: int
    low: float
    high: float

    @property
    def toy(self) -> bool:
        """Whether it is one of the envs in this file."""
        return self.env.partition(":")[0] in ("Match", "Reach")


TASKS = {
    "match-box": Task("Match:box", 50_000, 33.0, 100.0),
    "match-binary": Task("Match:binary", 50_000, 50.0, 100.0),
    "match-choices": Task("Match:choices", 50_000, 26.0, 100.0),
    "match-choice": Task("Match:choice", 50_000, 12.5, 100.0),
    "reach-dict": Task("Reach", 50_000, -50.0, -10.0),
    "frozenlake": Task("FrozenLake-v1", 50_000, 0.0, 0.74),
    "cartpole": Task("CartPole-v1", 50_000, 22.0, 500.0),
    "acrobot": Task("Acrobot-v1", 100_000, -500.0, -80.0),
    "pendulum": Task("Pendulum-v1", 100_000, -1200.0, -160.0),
    "invertedpendulum": Task("InvertedPendulum-v5", 50_000, 6.0, 1000.0),
    "lunarlander": Task("LunarLander-v3", 100_000, -180.0, 250.0),
    "lunarlander-box": Task("LunarLanderContinuous-v3", 100_000, -200.0, 250.0),
    "hopper": Task("Hopper-v5", 100_000, 20.0, 2500.0),
    "halfcheetah": Task("HalfCheetah-v5", 100_000, -280.0, 3000.0),
}


def make(name: str) -> gym.Env[Any, Any]:
    """A fresh env of a task."""
    env, _, argument = TASKS[name].env.partition(":")
    if TASKS[name].toy:
        return Match(argument) if env == "Match" else Reach()
    return gym.make(env, disable_env_checker=True)
