"""N environments that we build, stepped in one process, each episode with a seed of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from surefoot.envs.checks import as_number, check_action_space, check_first_observation, require_finite
from surefoot.envs.seeds import episode_seed
from surefoot.errors import EnvError, UsageError
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.types import Array


LONGEST_REPLAY = 200_000  # steps of an open episode that are remembered for a resume


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every reset from (run seed, env index, episode number), also those of somebody else's autoreset."""

    def __init__(self, env: gym.Env[Any, Any], run_seed: int, env_index: int) -> None:
        super().__init__(env)
        self.run_seed, self.env_index, self.episode, self.steps = run_seed, env_index, -1, 0
        self.actions: list[Any] = []  # of the open episode: with its seed, they are its whole state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.steps = 0
        self.actions.clear()
        return self.env.reset(seed=self.seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps <= LONGEST_REPLAY:
            self.actions.append(action.copy())
        return self.env.step(action)

    def replay(self, episode: int, actions: Array) -> Any:
        """Bring the env to where `episode` stood after `actions`; the observation there."""
        self.episode = episode - 1
        obs, _ = self.reset()
        for action in actions:
            obs, *_ = self.step(action)
        return obs

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
        if len({id(env.unwrapped) for env in self.envs}) < num_envs:
            self.close()
            raise UsageError(
                "the function that makes the env returned the same env twice; it must make a new one each time"
            )
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
            reward[index] = pay if isinstance(pay, float) else as_number(pay, "reward", env)
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

    def state_dict(self) -> dict[str, Any]:
        """The open episodes: number, steps and actions so far. (An episode too long to remember has fewer actions.)"""
        return {
            "episode": [env.episode for env in self.envs],
            "steps": [env.steps for env in self.envs],
            "actions": [np.stack(env.actions) if env.actions else None for env in self.envs],
        }

    def load_state_dict(self, state: dict[str, Any], last_obs: Array) -> list[int]:
        """Replay the open episodes; returns the envs that did not come back as `last_obs` says.

        Those have been reset to a fresh episode: their first observation is in `observations`.
        """
        lost = []
        for index, env in enumerate(self.envs):
            episode, steps, actions = (state[name][index] for name in ("episode", "steps", "actions"))
            replayable = 0 if actions is None else len(actions)
            obs = (
                env.replay(episode, np.asarray(actions) if replayable else np.zeros(0)) if replayable == steps else None
            )
            if obs is None or not np.array_equal(np.asarray(obs, last_obs.dtype), last_obs[index]):
                lost.append(index)
                env.episode = episode
                obs = self._reset(env)
            self._store(index, obs)
        return lost

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self._obs.copy()

    def close(self) -> None:
        """Every env, also after one that raises; its error comes when all are closed."""
        broken: EnvError | None = None
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                broken = EnvError(f"close of {env} raised {type(error).__name__}: {error}")
                broken.__cause__ = error
        if broken is not None:
            raise broken
