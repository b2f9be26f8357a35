"""N environments that we build, stepped in one process, each episode with a seed of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from surefoot.envs.checks import check_action_space, check_first_observation, require_finite
from surefoot.envs.seeds import episode_seed
from surefoot.errors import EnvError
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.types import Array


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every reset from (run seed, env index, episode number), also those of somebody else's autoreset."""

    def __init__(self, env: gym.Env[Any, Any], run_seed: int, env_index: int) -> None:
        super().__init__(env)
        self.run_seed, self.env_index, self.episode, self.steps = run_seed, env_index, -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.steps = 0
        return self.env.reset(seed=self.seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.env.step(action)

    @property
    def seed(self) -> int:
        return episode_seed(self.run_seed, self.env_index, self.episode)

    def __str__(self) -> str:
        spec = self.env.spec
        name = spec.id if spec else type(self.env.unwrapped).__name__
        return f"{name} (env {self.env_index}, seed {self.seed}, episode {self.episode}, step {self.steps})"


def time_limit(env: gym.Env[Any, Any]) -> int | None:
    """The longest episode: of the env's spec, or of a TimeLimit wrapped around an env that has none."""
    if env.spec is not None:
        return env.spec.max_episode_steps
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


class GymEnvs:
    """The envs, their observations in one array, resets within the step (so every step is a transition)."""

    exact_seeds = True

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_envs: int, run_seed: int) -> None:
        self.num_envs = num_envs
        self.envs: list[SeededEpisodes] = []
        try:
            for index in range(num_envs):
                self.envs.append(SeededEpisodes(make(), run_seed, index))
        except BaseException:
            self.close()
            raise
        first = self.envs[0]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        check_action_space(self.action_space)
        self.time_limit = time_limit(first)
        self._shape = self.observation_space.shape
        self._obs = np.zeros((num_envs, *(self._shape or ())), self.observation_space.dtype)
        self._checked = False

    def reset(self) -> Array:
        for index, env in enumerate(self.envs):
            self._store(index, self._reset(env))
        require_finite(self._obs, "observation", self.envs)
        return self._obs.copy()

    def step(self, action: Array, active: Array | None = None) -> Step:
        size = self.num_envs
        reward = np.zeros(size, np.float64)
        terminated, truncated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        valid = np.ones(size, np.bool_) if active is None else active.copy()
        final_obs: dict[int, Array] = {}
        final_info: dict[int, dict[str, Any]] = {}
        for index, env in enumerate(self.envs):
            if active is not None and not active[index]:
                continue
            try:
                obs, pay, ended, cut, info = env.step(action[index])
            except Exception as error:
                raise EnvError(f"step of {env} raised {type(error).__name__}: {error}") from error
            try:
                reward[index] = pay
            except (TypeError, ValueError):
                raise EnvError(f"{env} returned the reward {pay!r}; it must be one number") from None
            if ended or cut:
                terminated[index], truncated[index] = ended, cut
                final_obs[index] = self._checked_obs(env, obs).copy()
                final_info[index] = info
                # Before the reset: afterwards the env's name would be that of its next episode.
                require_finite(reward[index : index + 1], "reward", [env])
                require_finite(final_obs[index][None], "final observation", [env])
                obs = self._reset(env)
            self._store(index, obs)
        require_finite(reward, "reward", self.envs)
        require_finite(self._obs, "observation", self.envs)
        return Step(self._obs.copy(), reward, terminated, truncated, valid, final_obs, final_info)

    def _reset(self, env: SeededEpisodes) -> Any:
        try:
            obs, _ = env.reset()
        except Exception as error:
            raise EnvError(f"reset of {env} raised {type(error).__name__}: {error}") from error
        if not self._checked:
            check_first_observation(env, self.observation_space, obs)
            self._checked = True
        return obs

    def _checked_obs(self, env: SeededEpisodes, obs: Any) -> Array:
        array = np.asarray(obs)
        if array.shape != self._shape:
            raise EnvError(f"{env} returned an observation of shape {array.shape}; its space says {self._shape}")
        return array

    def _store(self, index: int, obs: Any) -> None:
        # Assigning a wrong shape would broadcast silently.
        self._obs[index] = self._checked_obs(self.envs[index], obs)

    def close(self) -> None:
        for env in self.envs:
            env.close()
