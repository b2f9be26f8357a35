"""Some games on ale-py's C++ threads, which step together. Every episode has its own seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.ids import ATARI
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.types import Step

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv

    from surefoot.envs.config import EnvConfig
    from surefoot.types import Array

PREFIX = "atari:"
STACK, SKIP = 4, 4  # frames of an observation; frames of a step
ENDLESS = 2**30  # frames; versions of ale-py differ in what they count, so the time limit is ours
STICKY, FULL = "repeat_action_probability", "full_action_space"  # the env_kwargs, which a single env takes as well


def facts_of(config: EnvConfig) -> dict[str, object]:
    """What Gymnasium's id of the game is registered with, and what the user set."""
    return {**gym.spec(f"{ATARI}{config.env.removeprefix(PREFIX)}").kwargs, **config.env_kwargs}


def limit_of(config: EnvConfig) -> int:
    """The most steps of an episode."""
    frames = facts_of(config)["max_num_frames_per_episode"]
    assert isinstance(frames, int)
    return min(frames // SKIP, config.max_episode_steps or frames)


def make_ale(config: EnvConfig, num_envs: int, threads: int) -> AtariVectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    facts = facts_of(config)
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


class Games:
    """ale-py would reset a finished game at the next step, but a game that has been reset in between just goes on.

    A reset with a seed loads the cartridge again, and ale-py computes a palette for it: 70 ms, as much as 250 steps. So
    `receive` gives the last observations, and `renew` begins the next episodes while other games may step.
    """

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, first: int) -> None:
        self.config, self.num_envs, self.threads, self.limit = config, num_envs, 0, limit_of(config)
        self.seeds = EpisodeSeeds(run_seed, first)
        self.episode, self.steps = np.full(num_envs, -1, np.int64), np.zeros(num_envs, np.int64)
        self._lives = np.zeros(num_envs, np.int64)
        self._ale: AtariVectorEnv | None = None

    @property
    def ale(self) -> AtariVectorEnv:
        """Made when it is first needed, because its number of threads cannot be changed."""
        if self._ale is None:
            self._ale = make_ale(self.config, self.num_envs, self.threads)
        return self._ale

    def reset(self, chosen: Array) -> Array:
        """Begin the next episode of the chosen games; the observations of all."""
        self.episode[chosen] += 1
        return self.begin(chosen)

    def begin(self, chosen: Array) -> Array:
        """Begin the current episodes of the chosen games, perhaps once more; the observations of all."""
        if self._ale is None and not chosen.all():
            self.ale.reset()  # it resets single games only after all of them
        where = np.flatnonzero(chosen).tolist()
        seeds = self.seeds.of(where, self.episode[chosen].tolist())
        obs, info = self.ale.reset(seed=np.array(seeds, np.int64), options={"reset_mask": chosen})
        self.steps[chosen], self._lives = 0, np.array(info["lives"], np.int64)
        return self._padded(cast("Array", obs))

    def send(self, actions: Array) -> None:
        """Begin a step."""
        self.ale.send(np.asarray(actions, np.int64))

    def receive(self) -> Step:
        """The step that was begun. Where an episode has ended, `obs` is its last one until `renew`.

        The observations are where ale-py's threads wrote them: it gives that memory away and takes new one.
        """
        obs, reward, terminated, truncated, info = self.ale.recv()
        self.steps += 1
        truncated = truncated | (self.steps >= self.limit)
        done = terminated | truncated
        lives, before = np.array(info["lives"], np.int64), self._lives
        lost, self._lives = (lives > 0) & (lives < before) & ~done, lives
        obs, columns = self._padded(obs), {**info, LIFE_LOST: lost}
        del columns["env_id"]  # it counts the games here, which may be a part of all
        return Step(
            obs=obs,
            reward=reward.astype(np.float64),
            terminated=terminated.copy(),
            truncated=truncated,
            valid=np.ones(self.num_envs, np.bool_),
            final_obs={int(index): obs[index].copy() for index in np.flatnonzero(done)},
            final_info={int(i): {name: column[i] for name, column in columns.items()} for i in np.flatnonzero(done)},
            life_lost=lost,
            first=done,
        )

    def renew(self, step: Step) -> Step:
        """The step with the first observations of the next episodes where one has ended."""
        done = step.start
        if done.any():
            step.obs[done] = self.reset(done)[done]
        return step

    def _padded(self, obs: Array) -> Array:
        """A stack that is not full yet repeats the first frame, as Gymnasium's does; ale-py leaves it black."""
        for index in np.flatnonzero(self.steps < STACK - 1):
            oldest = STACK - 1 - self.steps[index]
            obs[index, :oldest] = obs[index, oldest]
        return obs

    def replay(self, episodes: Array, known: list[Array]) -> tuple[Array, Array]:
        """Play these episodes again with the actions that are known of them.

        They all step together, so a shorter episode begins later and all arrive at the same time. Returns what the
        games show then, and which episodes ended before, `[N]` bool.
        """
        self.episode[:] = episodes
        longest = max(map(len, known))
        wait = np.array([longest - len(rows) for rows in known])
        obs, early = self.begin(wait >= 0), np.zeros(self.num_envs, np.bool_)
        for t in range(longest + 1):
            if t and (late := wait == t).any():
                obs = self.begin(late)
            if t < longest:
                self.send(np.array([rows[t - w] if t >= w else 0 for rows, w in zip(known, wait, strict=True)]))
                step = self.receive()
                obs = step.obs
                early |= step.start & (t >= wait)
        return obs, early

    def close(self) -> None:
        self._ale = None  # its threads end with it
