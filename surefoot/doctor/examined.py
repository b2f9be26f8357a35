"""Adapts the examined env to the loop that plays episodes: raw, because its faults are to be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from surefoot.doctor.case import SEED, reset, step
from surefoot.envs.seeds import episode_seed
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.doctor.case import Case
    from surefoot.types import Actions, Array, GymEnv


class Onlooker(Protocol):
    """Sees whatever the env returns. `where`: seed, episode and step, in words."""

    def saw_reset(self, obs: object, where: str) -> None: ...

    def saw_step(self, obs: object, pay: object, ended: object, cut: object, where: str) -> float:
        """The reward to count."""
        ...


class ExaminedEnv:
    """One env. Episode j has the seed that episode j of env `index` of a run with the doctor's seed would have."""

    num_envs = num_agents = 1

    def __init__(self, env: GymEnv, index: int, onlooker: Onlooker) -> None:
        self.env, self._index, self._onlooker = env, index, onlooker
        self.acting = np.zeros(1, np.bool_)
        self._episode, self._steps = "", 0

    def begin(self, place: int, episode: int) -> None:
        seed = episode_seed(SEED, self._index, episode)
        self._episode, self._steps = f"seed {seed}, episode {episode}", 0
        self.obs, self.info = reset(self.env, seed)
        self._onlooker.saw_reset(self.obs, f"{self._episode}, reset")
        self.acting[:] = True

    def step(self, action: Actions, active: Array | None = None) -> Step:
        self.obs, pay, ended, cut, self.info = step(self.env, action[0])
        self._steps += 1
        reward = np.array([self._onlooker.saw_step(self.obs, pay, ended, cut, f"{self._episode}, step {self._steps}")])
        terminated, truncated = np.array([bool(ended)]), np.array([bool(cut)])
        self.acting[:] = ~(terminated | truncated)
        no_rows = np.empty((1, 0))  # the observation may not fit any layout; it is in `obs`
        return Step(no_rows, reward, terminated, truncated, np.ones(1, np.bool_))


class Chance:
    """Draws legal actions and remembers them."""

    def __init__(self, case: Case) -> None:
        self._case, self._rng = case, np.random.default_rng(SEED)
        self.drawn: list[object] = []

    def act(self, envs: ExaminedEnv, rows: Array, begins: Array) -> Actions:
        self.drawn.append(self._case.action(envs.env, envs.obs, envs.info, self._rng))
        return self.drawn[-1:]


class Again:
    """Takes actions from a list, one after another."""

    def __init__(self, actions: list[object]) -> None:
        self.left = list(actions)

    def act(self, envs: ExaminedEnv, rows: Array, begins: Array) -> Actions:
        return [self.left.pop(0)]
