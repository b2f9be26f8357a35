"""Atari by ale-py's own vector env: `atari:Pong-v5`. C++ threads play all games of a run and preprocess their frames.

Frames, rewards and repeated actions are those of `ALE/Pong-v5` to the bit. Only an episode's start differs: ale-py
presses FIRE for one frame before its no-ops, of which there are up to 29, instead of four frames after 1 to 30 of them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np

from surefoot.envs.atari_games import FULL, PREFIX, STICKY, Games, limit_of, make_ale
from surefoot.envs.backends import Backend
from surefoot.envs.checks import blamed, supported_spaces
from surefoot.envs.ids import ATARI, atari_ids
from surefoot.envs.make import import_plugins, registered_env
from surefoot.envs.open_episodes import as_episodes, episodes_shape
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.errors import UsageError, did_you_mean
from surefoot.limits import usable_cores
from surefoot.spaces.layout import Layout
from surefoot.text import counted
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.schema import Shape
    from surefoot.types import Array, GymEnv, Info

THREADS = "ale-py has threads of its own"
LEAST, MOST_PARTS = 16, 8  # games of a part, if there are several; parts


def number_of_parts(num_envs: int) -> int:
    """Parts of equal size. It depends on the number of envs alone, so that the same run has the same bytes anywhere."""
    return next((parts for parts in range(min(MOST_PARTS, num_envs // LEAST), 1, -1) if num_envs % parts == 0), 1)


class AtariEnvs:
    """The games of a run, in parts that may step at their own pace: while some step, others begin their next episodes,
    and the policy acts for others still. Open episodes are restored from their seeds and actions.
    """

    exact_seeds = batched_actions = equal_parts = True
    num_agents = 1
    render_modes: tuple[str, ...] = ()

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int, first: int = 0) -> None:
        self.num_envs, self.name = num_envs, config.env
        self.observation_space, self.action_space = supported_spaces(make_ale(config, 1, 1), "single_")
        self.layout = Layout(self.observation_space, 0)
        self.time_limit: int | None = limit_of(config)
        count = number_of_parts(num_envs)
        size = num_envs // count
        self.parts = [slice(size * part, size * (part + 1)) for part in range(count)]
        self._seeds = EpisodeSeeds(run_seed, first)
        self.games = [Games(config, size, run_seed, first + own.start) for own in self.parts]
        self.notes: tuple[str, ...] = (
            f"note: ale-py steps the games of this run together; {self.name} starts as {ATARI} ids nearly do",
        )
        self.observations: Array = np.zeros((num_envs, *self.layout.shape), self.layout.dtype)
        self._actions: list[list[int]] = [[] for _ in range(num_envs)]  # of the open episodes
        self._taken: list[list[int]] = [[] for _ in self.parts]  # the actions of the step that a part is in
        self._sent = deque[int]()  # the parts that step
        self._ends: dict[int, Future[Step]] = {}  # the parts that have stepped, and begin episodes now
        self._steps: dict[int, Step] = {}  # the parts that have answered
        self._pool = ThreadPoolExecutor(count, "surefoot-atari")

    def __str__(self) -> str:
        return f"{self.name} ({self.num_envs} games)"

    def use_threads(self, most: int, *, measure: bool) -> None:
        """Results do not depend on the number of threads, and a game is always worth one.

        Several parts have twice as many together as there may be, because some of them always wait for the policy. Each
        has one at least.
        """
        own = most if len(self.games) == 1 else -(-2 * most // len(self.games))
        for games in self.games:
            games.threads = max(1, min(own, games.num_envs))
        if measure and most < min(usable_cores(), self.num_envs) and "OMP_NUM_THREADS" in os.environ:
            self.notes += (
                f"note: the games have {counted(sum(games.threads for games in self.games), 'thread')}, because of "
                f"OMP_NUM_THREADS; "
                f"--threads {usable_cores()} lets all cores play",
            )

    def reset(self) -> Array:
        """Begin the next episode of every game."""
        self._settle()
        with blamed("reset", self):
            obs = list(self._pool.map(lambda games: games.reset(np.ones(games.num_envs, np.bool_)), self.games))
        for kept in self._actions:
            kept.clear()
        return obs[0] if len(obs) == 1 else np.concatenate(obs)

    def step(self, action: object, active: Array | None = None) -> Step:
        """Games that are not `active` are at the beginning of an episode, and begin it again."""
        taken, steps = np.asarray(action), dict[int, Step]()
        before = [games.episode.copy() for games in self.games]
        for part, own in enumerate(self.parts):
            assert active is None or not self.games[part].steps[~active[own]].any(), "an idle game is in an episode"
            self.send(part, taken[own])
        while len(steps) < len(self.parts):
            steps |= {part: self.take(part) for part in self.answered()}
        if active is not None:
            for part, own in enumerate(self.parts):
                self._hold(part, steps[part], ~active[own], before[part])
        return joined([steps[part] for part in range(len(steps))], self.parts)

    def _hold(self, part: int, step: Step, idle: Array, before: Array) -> None:
        """Undo the step of the games that are idle."""
        games, own = self.games[part], self.parts[part]
        step.valid[:] = ~idle
        if not idle.any():
            return
        games.episode[idle] = before[idle]
        step.obs[idle] = games.begin(idle)[idle]
        for flags in (step.terminated, step.truncated, step.life_lost):
            assert flags is not None
            flags[idle] = False
        for index in np.flatnonzero(idle).tolist():
            self._actions[own.start + index].clear()
            step.final_obs.pop(index, None)
            step.final_info.pop(index, None)

    def send(self, part: int, action: Array) -> None:
        """Begin a step of this part."""
        actions = np.asarray(action)
        with blamed("step", self):
            self.games[part].send(actions)
        self._taken[part] = actions.tolist()
        self._sent.append(part)

    def answered(self) -> list[int]:
        """The parts whose steps have ended, with the beginnings of the next episodes; waits for one.

        In whatever order they end; what each shows does not depend on it.
        """
        while not self._steps:
            over = [part for part, future in self._ends.items() if future.done()]
            if not over and not self._sent:
                wait(self._ends.values(), return_when=FIRST_COMPLETED)
                continue
            for part in over:
                with blamed("reset", self):
                    self._steps[part] = self._ends.pop(part).result()
            if not over:
                part = self._sent.popleft()
                with blamed("step", self):
                    step = self.games[part].receive()
                if step.start.any():
                    self._ends[part] = self._pool.submit(self.games[part].renew, step)
                else:
                    self._steps[part] = step
        return list(self._steps)

    def take(self, part: int) -> Step:
        """The step of this part's games, with indices that count from 0."""
        step, first = self._steps.pop(part), self.parts[part].start
        for index, (taken, ended) in enumerate(zip(self._taken[part], step.start.tolist(), strict=True), first):
            if ended:
                self._actions[index].clear()
            else:
                self._actions[index].append(taken)
        return step

    def _settle(self) -> None:
        """Let the steps end that an interrupted rollout has begun."""
        while self._sent or self._ends or self._steps:
            for part in self.answered():
                self.take(part)

    def state_dict(self) -> EpisodesState:
        """The same as that of `GymEnvs`."""
        actions = [np.array(kept, np.int64) if kept else None for kept in self._actions]
        steps = [int(number) for games in self.games for number in games.steps]
        return {"episode": self.episode_numbers(), "steps": steps, "actions": actions}

    def state_shape(self) -> Shape:
        return episodes_shape(self.num_envs, ())

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Replay the open episodes; returns the games whose replay does not match `last_obs`, which begin the next."""
        self._settle()
        opened = as_episodes(state)
        known = [np.zeros(0, np.int64) if rows is None else np.asarray(rows) for rows in opened["actions"]]

        def replayed(part: int) -> tuple[Array, Array]:
            games, own = self.games[part], self.parts[part]
            obs, early = games.replay(np.array(opened["episode"][own]), known[own])
            differs = (obs != last_obs[own]).reshape(games.num_envs, -1).any(1)
            lost: Array = early | differs | (np.array([*map(len, known[own])]) != opened["steps"][own])
            if lost.any():
                obs[lost] = games.reset(lost)[lost]
            return obs, lost

        with blamed("reset", self):
            found = list(self._pool.map(replayed, range(len(self.parts))))
        lost = np.concatenate([lost for _, lost in found])
        self._actions = [[] if gone else rows.tolist() for gone, rows in zip(lost, known, strict=True)]
        self.observations = np.concatenate([obs for obs, _ in found])
        return [int(index) for index in np.flatnonzero(lost)]

    def episode_numbers(self) -> list[int]:
        return [int(number) for games in self.games for number in games.episode]

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of(rows, numbers)

    def close(self) -> None:
        self._pool.shutdown()
        for games in self.games:
            games.close()


def joined(steps: Sequence[Step], parts: Sequence[slice]) -> Step:
    """The steps of all parts as one."""
    if len(steps) == 1:
        return steps[0]
    obs, reward, terminated, truncated, valid, lost, first = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("obs", "reward", "terminated", "truncated", "valid", "life_lost", "first")
    )
    final_obs, final_info = dict[int, "Array"](), dict[int, "Info"]()
    for step, own in zip(steps, parts, strict=True):
        final_obs |= {own.start + index: row for index, row in step.final_obs.items()}
        final_info |= {own.start + index: info for index, info in step.final_info.items()}
    return Step(obs, reward, terminated, truncated, valid, final_obs, final_info, lost, first)


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
        return AtariEnvs(config, num_envs, seed, first)

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
