"""N environments that we build, stepped in one process, each episode with its own seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import gymnasium as gym
import numpy as np

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.checks import (
    as_flag,
    as_number,
    blame,
    blamed,
    check_first_observation,
    pack_row,
    require_finite,
    reset_result,
    step_result,
    supported_spaces,
)
from surefoot.envs.forks import Original
from surefoot.envs.masks import MaskReader, has_method, method_of
from surefoot.envs.open_episodes import LONGEST_REPLAY, OpenEpisodes, close_all, kept
from surefoot.envs.seeds import EpisodeSeeds, episode_seed
from surefoot.errors import EnvError, SurefootError, UsageError, user_errors
from surefoot.spaces.layout import MASK, Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.core import RenderFrame

    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.schema import Shape
    from surefoot.types import Actions, Array, GymEnv, GymStep, Info


P = ParamSpec("P")
T = TypeVar("T")


class SeededEpisodes(gym.Wrapper[object, object, object, object]):
    """Seeds every reset from (run seed, env index, episode number), including those of a third-party autoreset."""

    def __init__(self, env: GymEnv, run_seed: int, env_index: int) -> None:
        super().__init__(env)
        self.run_seed, self.env_index, self.episode, self.steps = run_seed, env_index, -1, 0
        self.actions: list[object] = []  # in the open episode; with its seed, they determine its state
        self._original = Original()

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        self.episode += 1
        self.steps = 0
        self.actions.clear()
        return reset_result(self._call(self.env.reset, seed=self.seed, options=options), self)

    def step(self, action: object) -> GymStep:
        self.steps += 1
        if self.steps <= LONGEST_REPLAY:
            self.actions.append(kept(action))
        found = self._call(self.env.step, action)
        # Inlined, because this is the hot path: a function call costs 1 % of a cheap env's step.
        if type(found) is tuple and len(found) == 5 and type(found[4]) is dict:
            return found
        return step_result(found, self)

    def render(self) -> RenderFrame | list[RenderFrame] | None:
        return self._call(self.env.render)

    def close(self) -> None:
        self._call(self.env.close)

    def _call(self, method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a method of the user's env. If the env forks this process, the copy is ended here."""
        with self._original:
            return method(*arguments, **named)

    def replay(self, episode: int, actions: Sequence[object]) -> tuple[object, Info] | None:
        """Bring the env to the state of `episode` after `actions`. Returns the observation and info there.

        None if the episode ends before that, which means that the env is not deterministic.
        """
        self.episode = episode - 1
        obs, info = self.reset()
        for action in actions:
            obs, _, terminated, truncated, info = self.step(action)
            if terminated or truncated:
                return None
        return obs, info

    @property
    def seed(self) -> int:
        return episode_seed(self.run_seed, self.env_index, self.episode)

    def __str__(self) -> str:
        spec = self.env.spec
        name = spec.id if spec else type(self.env.unwrapped).__name__
        return f"{name} (env {self.env_index}, seed {self.seed}, episode {self.episode}, step {self.steps})"


def time_limit(env: GymEnv) -> int | None:
    """The longest episode: from the env's spec, or from a TimeLimit around an env without one."""
    if env.spec is not None:
        return env.spec.max_episode_steps
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def render_modes(env: GymEnv) -> tuple[str, ...]:
    """The render modes that the env declares."""
    return tuple(map(str, (env.metadata or {}).get("render_modes") or ()))


class GymEnvs:
    """The envs and their observations in one array. Resets happen within the step, so every step is a transition."""

    exact_seeds, batched_actions = True, False
    notes: tuple[str, ...] = ()
    num_agents = 1

    def __init__(self, make: Callable[[], GymEnv], num_envs: int, run_seed: int, first: int = 0) -> None:
        """`first`: the index of the first env in the whole run, for the seeds."""
        self.num_envs, self._seeds = num_envs, EpisodeSeeds(run_seed, first)
        self.envs: list[SeededEpisodes] = []
        try:
            for index in range(num_envs):
                self.envs.append(SeededEpisodes(make(), run_seed, first + index))
        except BaseException:
            self.close()
            raise
        if len({id(env.unwrapped) for env in self.envs}) < num_envs:
            self.close()
            raise UsageError(
                "the function that makes the env returned the same env twice; it must make a new one each time"
            )
        try:
            self._prepare(self.envs[0])
        except BaseException:
            self.close()
            raise

    def _prepare(self, first: SeededEpisodes) -> None:
        self.observation_space, self.action_space = supported_spaces(first)
        self.time_limit = time_limit(first)
        self.render_modes = render_modes(first)
        self._checked, self._open = False, OpenEpisodes(self.action_space)
        self._begun: tuple[object, Info] | None = None  # the first env's first reset, if needed to look for masks
        self.masks = MaskReader.find(
            self.observation_space,
            self.action_space,
            method=lambda: has_method(first),
            in_info=lambda: self._asked(first),
        )
        self.layout = Layout(self.observation_space, self.masks.size)
        kind = self.observation_space.dtype if self.layout.plain else self.layout.dtype
        self._obs = np.zeros((self.num_envs, *self.layout.shape), kind)

    def _asked(self, first: SeededEpisodes) -> bool:
        """Whether the first reset's info has a mask."""
        self._begun = self._reset(first)
        return MASK in self._begun[1]

    def reset(self) -> Array:
        for index, env in enumerate(self.envs):
            begun, self._begun = self._begun, None
            self._store(index, *(begun or self._reset(env)))
        require_finite(self._obs, "observation", self.envs)
        return self._obs.copy()

    def step(self, action: Actions, active: Array | None = None) -> Step:
        size = self.num_envs
        reward = np.zeros(size, np.float64)
        terminated, truncated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        valid = np.ones(size, np.bool_) if active is None else active.copy()
        life_lost: Array | None = None
        final_obs: dict[int, Array] = {}
        final_info: dict[int, Info] = {}
        for index, env in enumerate(self.envs):
            if active is not None and not active[index]:
                continue
            try:
                obs, pay, ended, cut, info = env.step(action[index])
            except SurefootError:
                raise
            except user_errors() as error:
                raise blame("step", env, error) from error
            reward[index] = pay if isinstance(pay, float) else as_number(pay, "reward", env)
            if ended is not False:
                ended = as_flag(ended, "terminated", env)
            if cut is not False:
                cut = as_flag(cut, "truncated", env)
            if ended or cut:
                terminated[index], truncated[index] = ended, cut
                final_obs[index] = self._final_row(env, obs)
                final_info[index] = info
                # Before the reset, because errors name the env's current episode.
                require_finite(reward[index : index + 1], "reward", [env])
                require_finite(final_obs[index][None], "final observation", [env])
                obs, info = self._reset(env)
            elif info.get(LIFE_LOST, False):
                life_lost = np.zeros(size, np.bool_) if life_lost is None else life_lost
                life_lost[index] = True
            self._store(index, obs, info)
        require_finite(reward, "reward", self.envs)
        require_finite(self._obs, "observation", self.envs)
        return Step(self._obs.copy(), reward, terminated, truncated, valid, final_obs, final_info, life_lost)

    def _reset(self, env: SeededEpisodes) -> tuple[object, Info]:
        try:
            obs, info = env.reset()
        except SurefootError:
            raise
        except user_errors() as error:
            raise blame("reset", env, error) from error
        if not self._checked:
            check_first_observation(env, self.observation_space, obs)
            self._checked = True
        return obs, info

    def _final_row(self, env: SeededEpisodes, obs: object) -> Array:
        return pack_row(env, obs, self.layout, self.masks.free).copy()

    def _store(self, index: int, obs: object, info: Info) -> None:
        env = self.envs[index]
        mask = self._mask(env, obs, info) if self.masks.source else None
        self._obs[index] = pack_row(env, obs, self.layout, mask)

    def _mask(self, env: SeededEpisodes, obs: object, info: Info) -> Array:
        try:
            return self.masks.row(obs, info, method_of(env))
        except user_errors() as error:
            raise EnvError(f"{env}: {error}") from error

    def state_dict(self) -> EpisodesState:
        return self._open.state_dict(self.envs)

    def state_shape(self) -> Shape:
        return self._open.state_shape(len(self.envs))

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Replay the open episodes; returns the envs whose replay does not match `last_obs`.

        Those have been reset to a fresh episode: their first observation is in `observations`.
        """
        lost = []
        for index, env in enumerate(self.envs):
            episode, actions = self._open.read(state, index)
            with blamed("replay", env):
                there = None if actions is None else env.replay(episode, actions)
            if there is not None:
                self._store(index, *there)
            if there is None or not np.array_equal(np.asarray(self._obs[index], last_obs.dtype), last_obs[index]):
                lost.append(index)
                env.episode = episode
                self._store(index, *self._reset(env))
        self._begun = None
        return lost

    def episode_numbers(self) -> list[int]:
        if self._begun is not None:  # the reset so far was only to look for masks
            return [-1] * self.num_envs
        return [env.episode for env in self.envs]

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of(rows, numbers)

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self._obs.copy()

    def close(self) -> None:
        close_all(self.envs)
