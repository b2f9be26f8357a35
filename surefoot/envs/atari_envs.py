"""Atari by ale-py's own vector env: `atari:Pong-v5`. C++ threads play all games of a run and preprocess their frames.

Frames, rewards and repeated actions are those of `ALE/Pong-v5` to the bit. Only an episode's start differs: ale-py
presses FIRE for one frame before its no-ops, of which there are up to 29, instead of four frames after 1 to 30 of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.backends import Backend
from surefoot.envs.ids import ATARI, atari_ids
from surefoot.envs.make import import_plugins, registered_env
from surefoot.envs.open_episodes import as_episodes, episodes_shape
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ale_py.vector_env import AtariVectorEnv

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.schema import Shape
    from surefoot.types import Array, GymEnv, Info, Step

PREFIX = "atari:"
THREADS = "ale-py has threads of its own"
STACK, SKIP = 4, 4  # frames of an observation; frames of a step
ENDLESS = 2**30  # frames; versions of ale-py differ in what they count, so the time limit is ours
STICKY, FULL = "repeat_action_probability", "full_action_space"  # the env_kwargs, which a single env takes as well


class Games(VectorEnv["Array", "Array", "Array"]):
    """N games as a vector env without autoreset. Every episode has its own seed, given by a reset of that game alone.

    ale-py would reset a finished game at the next step, but a game that has been reset in between just goes on.
    """

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, first: int) -> None:
        self.config, self.num_envs, self.threads = config, num_envs, 0
        self.name = config.env.removeprefix(PREFIX)
        self._made: AtariVectorEnv | None = None
        self.limit = self._limit()
        self.spec = EnvSpec(id=f"{ATARI}{self.name}", max_episode_steps=self.limit)
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        probe = self._make(1, 1)
        self.single_observation_space, self.single_action_space = (
            probe.single_observation_space,
            probe.single_action_space,
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.seeds = EpisodeSeeds(run_seed, first)
        self.episode, self.steps = np.full(num_envs, -1, np.int64), np.zeros(num_envs, np.int64)
        self._lives = np.zeros(num_envs, np.int64)

    def __repr__(self) -> str:
        return f"{PREFIX}{self.name}"

    def _facts(self) -> dict[str, object]:
        """What Gymnasium's id of the game is registered with, and what the user set."""
        return {**gym.spec(f"{ATARI}{self.name}").kwargs, **self.config.env_kwargs}

    def _limit(self) -> int:
        frames = self._facts()["max_num_frames_per_episode"]
        assert isinstance(frames, int)
        return min(frames // SKIP, self.config.max_episode_steps or frames)

    def _make(self, num_envs: int, threads: int) -> AtariVectorEnv:
        from ale_py.vector_env import AtariVectorEnv

        facts = self._facts()
        return AtariVectorEnv(
            str(facts["game"]),
            num_envs,
            num_threads=threads,
            max_num_frames_per_episode=ENDLESS,
            reward_clipping=False,
            frameskip=SKIP,
            stack_num=STACK,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            repeat_action_probability=cast(float, facts[STICKY]),
            full_action_space=cast(bool, facts[FULL]),
        )

    @property
    def ale(self) -> AtariVectorEnv:
        """Made when it is first needed, because its number of threads cannot be changed."""
        if self._made is None:
            self._made = self._make(self.num_envs, self.threads)
            self._made.reset()  # it resets single games only after all of them
        return self._made

    def reset(self, *, seed: object = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        """Begin the next episode of the games in `options["reset_mask"]`, or of all. The seeds are our own."""
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else np.asarray(mask)
        self.episode[chosen] += 1
        return self.begin(chosen)

    def begin(self, chosen: Array) -> tuple[Array, Info]:
        """Begin the current episodes of these games, perhaps once more."""
        where = np.flatnonzero(chosen).tolist()
        seeds = self.seeds.of(where, self.episode[chosen].tolist())
        obs, info = self.ale.reset(seed=np.array(seeds, np.int64), options={"reset_mask": chosen})
        self.steps[chosen], self._lives = 0, np.array(info["lives"], np.int64)
        return self._padded(obs), {**info}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, Info]:
        obs, reward, terminated, truncated, info = self.ale.step(np.asarray(actions, np.int64))
        self.steps += 1
        truncated = truncated | (self.steps >= self.limit)
        lives, before = np.array(info["lives"], np.int64), self._lives
        lost = (lives > 0) & (lives < before) & ~(terminated | truncated)
        self._lives = lives
        return self._padded(obs), reward, terminated, truncated, {**info, LIFE_LOST: lost}

    def _padded(self, obs: Array) -> Array:
        """A stack that is not full yet repeats the first frame, as Gymnasium's does; ale-py leaves it black."""
        obs = np.array(obs)
        for index in np.flatnonzero(self.steps < STACK - 1):
            oldest = STACK - 1 - self.steps[index]
            obs[index, :oldest] = obs[index, oldest]
        return obs

    def close_extras(self, **kwargs: object) -> None:
        self._made = None  # its threads end with it


class AtariEnvs(VectorEnvs):
    """The games of a run. Open episodes are restored from their seeds and actions, all together."""

    exact_seeds = True
    num_agents = 1

    def __init__(self, games: Games) -> None:
        super().__init__(games, 0, begun=(None, {}))  # there are no masks to look for
        self.games, self._begun = games, None
        self.notes = (f"note: ale-py steps the games of this run together; {games} starts as {ATARI} ids nearly do",)
        self.observations: Array = np.zeros((self.num_envs, *self.layout.shape), self.layout.dtype)
        self._actions: list[list[int]] = [[] for _ in range(self.num_envs)]  # of the open episodes

    def __str__(self) -> str:
        return f"{self.games} (step {self._steps})"

    def use_threads(self, most: int, *, measure: bool) -> None:
        """Results do not depend on the number of threads, and a game is always worth one."""
        self.games.threads = max(1, min(most, self.num_envs))

    def step(self, action: object, active: Array | None = None) -> Step:
        """Games that are not `active` are at the beginning of an episode, and begin it again."""
        taken = np.asarray(action).tolist()
        idle = np.zeros(self.num_envs, np.bool_) if active is None else ~active
        assert not self.games.steps[idle].any(), "an idle game is in the middle of an episode"
        before = self.games.episode.copy()
        step = super().step(action, active)
        for index, kept in enumerate(self._actions):
            if self.games.episode[index] > before[index]:
                kept.clear()
            elif not idle[index]:
                kept.append(taken[index])
        if idle.any():
            self.games.episode[idle] = before[idle]
            step.obs[idle] = self.games.begin(idle)[0][idle]
            step.terminated[idle] = step.truncated[idle] = False
            for index in np.flatnonzero(idle).tolist():
                step.final_obs.pop(index, None)
                step.final_info.pop(index, None)
        return step

    def state_dict(self) -> EpisodesState:
        """The same as that of `GymEnvs`."""
        actions = [np.array(kept, np.int64) if kept else None for kept in self._actions]
        return {"episode": self.games.episode.tolist(), "steps": self.games.steps.tolist(), "actions": actions}

    def state_shape(self) -> Shape:
        return episodes_shape(self.num_envs, ())

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Replay the open episodes; returns the games whose replay does not match `last_obs`, which begin the next one.

        They all step together, so a shorter episode begins later and all arrive at the same time.
        """
        opened, games = as_episodes(state), self.games
        known = [np.zeros(0, np.int64) if rows is None else np.asarray(rows) for rows in opened["actions"]]
        games.episode[:] = opened["episode"]
        longest = max(map(len, known))
        wait = np.array([longest - len(rows) for rows in known])
        obs, early = games.begin(wait >= 0)[0], np.zeros(self.num_envs, np.bool_)
        for t in range(longest + 1):
            if t and (late := wait == t).any():
                obs = games.begin(late)[0]
            if t < longest:
                action = [rows[t - w] if t >= w else 0 for rows, w in zip(known, wait, strict=True)]
                obs, _, terminated, truncated, _ = games.step(np.array(action))
                early |= (terminated | truncated) & (t >= wait)
        differs = (obs != last_obs).reshape(self.num_envs, -1).any(1)
        lost = early | differs | (np.array([len(rows) for rows in known]) != opened["steps"])
        self._actions = [[] if gone else rows.tolist() for gone, rows in zip(lost, known, strict=True)]
        if lost.any():
            obs[lost] = games.reset(options={"reset_mask": lost})[0][lost]
        self.observations, self._begun, self._fresh = obs, None, True
        return [int(index) for index in np.flatnonzero(lost)]

    def episode_numbers(self) -> list[int]:
        return [int(number) for number in self.games.episode]

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self.games.seeds.of(rows, numbers)


class Atari(Backend):
    """`atari:ID`: a game of `ALE/ID` from pixels. Evaluations and videos play `ALE/ID` itself."""

    name = "atari"
    no_workers = THREADS

    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> GymEnv:
        self._check(config)
        return registered_env(replace(config, env=self._gym_id(config.env)), render_mode)

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> AtariEnvs:
        self._check(config)
        if setting := config.one_by_one:
            raise UsageError(f"{setting} cannot be applied to {config.env}; use {self._gym_id(config.env)}, or drop it")
        return AtariEnvs(Games(config, num_envs, seed, first))

    def steps_together(self, config: EnvConfig) -> tuple[bool, str]:
        return True, THREADS

    def _check(self, config: EnvConfig) -> None:
        gym_id = self._gym_id(config.env)
        import_plugins(gym_id)
        if gym_id not in gym.registry:
            games = [known.removeprefix(ATARI) for known in atari_ids()]
            raise UsageError(f"there is no game {gym_id}{did_you_mean(gym_id.removeprefix(ATARI), games)}")
        for name, value in config.env_kwargs.items():
            if name not in (STICKY, FULL):
                raise UsageError(f"env_kwargs: {name} cannot be given to {config.env} ({STICKY} and {FULL} can)")
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
            if not (number if name == STICKY else isinstance(value, bool)):
                wanted = "a number from 0 to 1" if name == STICKY else "true or false"
                raise UsageError(f"env_kwargs: {name} is {value!r}; it must be {wanted}")

    def _gym_id(self, env_id: str) -> str:
        return f"{ATARI}{env_id.removeprefix(PREFIX)}"

    def code(self, env_id: str) -> str:
        return ""

    def preset_ids(self, env_id: str) -> tuple[str, ...]:
        return (self._gym_id(env_id),)

    def ids(self) -> Iterable[str]:
        return [f"{PREFIX}{found.removeprefix(ATARI)}" for found in atari_ids()]
