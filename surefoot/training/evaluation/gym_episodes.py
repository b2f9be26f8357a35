"""Gymnasium envs that play the numbered episodes of an evaluation, with observations in the policy's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.envs.checks import as_flag, as_number, blame, require_sound
from surefoot.envs.gym_envs import SeededEpisodes, time_limit
from surefoot.envs.seeds import derive_seed
from surefoot.errors import EnvError, SurefootError, user_errors
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.training.evaluation.agent import Agent
    from surefoot.types import Actions, Array, GymEnv, Info


class EvaluationEpisode(SeededEpisodes):
    """Episode j of an evaluation has seed (seed, "eval", j), whichever env plays it."""

    @property
    def seed(self) -> int:
        return derive_seed(self.run_seed, "eval", self.episode)


class GymEpisodes:
    """One env for each of `indices`, which errors mention. `doing` says in errors what was going on."""

    num_agents = 1

    def __init__(
        self,
        agent: Agent,
        make: Callable[[], GymEnv],
        indices: Sequence[int],
        seed: int,
        doing: str = "evaluation",
    ) -> None:
        self.agent, self.doing, self.num_envs = agent, doing, len(indices)
        self.envs: list[EvaluationEpisode] = []
        try:
            for index in indices:
                self.envs.append(EvaluationEpisode(make(), seed, index))
        except BaseException:
            self.close()
            raise
        self.time_limit = time_limit(self.envs[0])
        self.acting = np.zeros(self.num_envs, np.bool_)
        self.observations = np.zeros((self.num_envs, 0))  # until the first reset

    def begin(self, place: int, episode: int) -> None:
        env = self.envs[place]
        env.episode = episode - 1
        self._see(place, *call_env(self.doing, env, "reset"))
        self.acting[place] = True

    def step(self, action: Actions, active: Array | None = None) -> Step:
        valid = self.acting if active is None else active
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for place in np.flatnonzero(valid).tolist():
            env = self.envs[place]
            obs, pay, ended, cut, info = call_env(self.doing, env, "step", action[place])
            terminated[place], truncated[place] = as_flag(ended, "terminated", env), as_flag(cut, "truncated", env)
            over = terminated[place] or truncated[place]
            if not over:  # the final observation needs no action, and its mask may be empty
                self._see(place, obs, info)
            reward[place] = as_number(pay, "reward", env)
            self.acting[place] = not over
        return Step(self.observations, reward, terminated, truncated, valid.copy())

    def _see(self, place: int, obs: object, info: Info) -> None:
        env = self.envs[place]
        try:
            row = self.agent.see(env, obs, info)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(f"{self.doing}: {env} showed what the policy cannot read: {error}") from error
        require_sound(row[None], self.agent.policy.layout, "observation", [env])
        if self.observations.shape[1:] != row.shape:  # in the env's own dtype: another might not hold its values
            self.observations = np.zeros((self.num_envs, *row.shape), row.dtype)
        self.observations[place] = row

    def close(self) -> None:
        with ExitStack() as leaving:
            for env in self.envs:
                leaving.callback(call_env, self.doing, env, "close")


def call_env(doing: str, env: SeededEpisodes, method: str, *arguments: object) -> Any:
    """Call a method of the user's env; errors name the env, its seed, its episode and its step."""
    try:
        return getattr(env, method)(*arguments)
    except SurefootError as error:
        raise type(error)(f"{doing}: {error}") from error.__cause__
    except user_errors() as error:
        raise blame(f"{doing}: {method}", env, error) from error
