"""The envs of one `MujocoTask`, stepped together. For Gymnasium's tasks they do exactly what `GymEnvs` would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random

from surefoot.envs.checks import blame, require_finite
from surefoot.envs.mujoco.batch import NoBatch, SimulationFailed, Simulations
from surefoot.envs.open_episodes import LONGEST_REPLAY, as_episodes, episodes_shape
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.errors import EnvError, SurefootError, user_errors
from surefoot.spaces.layout import Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    import mujoco

    from surefoot.envs.mujoco.task import MujocoTask
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.schema import Shape
    from surefoot.types import Actions, Array, GymSpace, Info

GAIN = 1.1  # required speed-up for threads, which other programs could use
ROUNDS, STEPS = 4, 5  # per measurement


@dataclass(frozen=True)
class Facts:
    """What is known of the envs without stepping them."""

    name: str
    model: mujoco.MjModel
    observation_space: GymSpace
    action_space: spaces.Box
    time_limit: int | None
    render_modes: tuple[str, ...] = ("rgb_array",)


class Place:
    """Names one env in errors."""

    def __init__(self, envs: MujocoEnvs, index: int) -> None:
        self.envs, self.index = envs, index

    def __str__(self) -> str:
        return self.envs.place(self.index)


class MujocoEnvs:
    """N envs. Resets happen within the step, each episode has its own seed, and open episodes are replayed."""

    exact_seeds, batched_actions = True, True
    num_agents = 1

    def __init__(self, task: MujocoTask, facts: Facts, num_envs: int, run_seed: int, first: int = 0) -> None:
        """`first`: the index of the first env in the whole run, for the seeds."""
        self.task, self.facts, self.num_envs, self.first = task, facts, num_envs, first
        self.observation_space: GymSpace = facts.observation_space
        self.action_space: GymSpace = facts.action_space
        self.name, self.time_limit, self.render_modes = facts.name, facts.time_limit, facts.render_modes
        self.layout = Layout(self.observation_space)
        self.threads, self._seeds = 1, EpisodeSeeds(run_seed, first)
        self._places = [Place(self, index) for index in range(num_envs)]
        # NumPy needs more time for a number than for an array, and more for a new array of ones than for a copy.
        self._ones, self._all = np.ones(num_envs, np.int64), np.ones(num_envs, np.bool_)
        self._rows = np.arange(num_envs)
        self._limit = None if facts.time_limit is None else np.full(num_envs, facts.time_limit)
        self._shape = (num_envs, *facts.action_space.shape)
        self._episode, self._steps = np.full(num_envs, -1, np.int64), np.zeros(num_envs, np.int64)
        # The actions of the open episodes; with their seeds, they determine the states.
        self._actions = np.zeros((min(facts.time_limit or 1024, 1024), *self._shape), np.float32)
        self._longest = 0  # no open episode is longer
        self._obs = np.zeros((num_envs, *self.layout.shape), self.observation_space.dtype)
        self._begun = False
        self._connect(1)

    def _connect(self, threads: int) -> None:
        sims = Simulations(self.facts.model, self.num_envs, threads, contact_forces=self.task.contact_forces)
        self.sims, self.threads, on = sims, threads, "1 thread" if threads == 1 else f"{threads} threads"
        self.notes: tuple[str, ...] = (f"note: MuJoCo steps the envs of this run together, on {on}",)
        self.task.connect(sims)

    def use_threads(self, most: int, *, measure: bool) -> None:
        """Step with up to `most` threads, before the first reset. `measure`: only if that is faster here.

        No bit depends on their number.
        """
        assert not self._begun
        most = min(most, self.num_envs)
        if most < 2:
            return
        alone = self._seconds() if measure else 0.0
        try:
            self._connect(most)
        except NoBatch:  # the system refuses to start so many threads
            return
        if measure and self._seconds() * GAIN > alone:
            self._connect(1)

    def _seconds(self) -> float:
        """The time of a few steps, the best of several rounds."""
        self.sims.reset()
        self.sims.forward()
        best = float("inf")
        for _ in range(ROUNDS):
            start = perf_counter()
            for _ in range(STEPS):
                self.sims.step(self.task.frame_skip)
            best = min(best, perf_counter() - start)
        return best

    def reset(self) -> Array:
        self._begin(range(self.num_envs), (self._episode + 1).tolist())
        self._obs = self._look()
        require_finite(self._obs, "observation", self._places)
        self._begun = True
        return self._obs.copy()

    def step(self, action: Actions, active: Array | None = None) -> Step:
        if not self._begun:
            raise EnvError(f"step of {self.name} before its first reset")
        given = np.asarray(action)
        # Gymnasium would compute in the type of the given numbers, so another type is not supported.
        if given.shape != self._shape or given.dtype != np.float32:
            raise ValueError(f"{self.name} takes actions of float32 {self._shape}, not {given.dtype} {given.shape}")
        obs, reward, terminated = self._advance(given, active)
        truncated = np.zeros(self.num_envs, np.bool_) if self._limit is None else self._steps >= self._limit
        if active is None:
            valid = self._all.copy()
        else:
            valid = active.copy()
            reward, terminated, truncated = np.where(active, reward, 0.0), terminated & active, truncated & active
        final_obs: dict[int, Array] = {}
        final_info: dict[int, Info] = {}
        if np.count_nonzero(done := terminated | truncated):
            for index in np.flatnonzero(done).tolist():
                # Before the reset, because errors name the env's current episode.
                require_finite(reward[index : index + 1], "reward", [self._places[index]])
                require_finite(obs[index : index + 1], "final observation", [self._places[index]])
                final_obs[index], final_info[index] = obs[index].copy(), self._info(index)
            ended = list(final_obs)
            self._begin(ended, (self._episode[ended] + 1).tolist())
            obs[ended] = self._look()[ended]
        require_finite(reward, "reward", self._places)
        require_finite(obs, "observation", self._places)
        self._obs = obs
        return Step(obs, reward, terminated, truncated, valid, final_obs, final_info)

    def _advance(self, action: Array, active: Array | None) -> tuple[Array, Array, Array]:
        """(observation, reward, terminated) of a step without resets. Rows that are not active have no meaning."""
        self._keep(action, active)
        task, sims = self.task, self.sims
        try:
            task.before_step()
            sims.ctrl[...] = action
            if active is None:
                sims.step(task.frame_skip)
            else:
                sims.step(task.frame_skip, np.flatnonzero(active).astype(np.int32))
            obs = self._look()
            reward = self._paid(task.reward(action))
            ended = task.terminated()
            terminated = np.zeros(self.num_envs, np.bool_) if ended is None else np.array(ended)
        except SurefootError:
            raise
        except SimulationFailed as error:
            raise EnvError(f"step of {self.place(error.index)} failed in MuJoCo: {error}") from error
        except user_errors() as error:
            raise blame("step", self.name, error) from error
        if terminated.shape != (self.num_envs,) or terminated.dtype != np.bool_:
            raise EnvError(
                f"{self.name}.terminated returned {terminated.dtype} {terminated.shape}; "
                f"it must return a bool for each env, ({self.num_envs},)"
            )
        return obs, reward, terminated

    def _paid(self, given: object) -> Array:
        """The rewards as float64, in a copy."""
        found = np.asarray(given)
        if found.shape != (self.num_envs,) or found.dtype.kind not in "fiub":
            said = "None" if given is None else f"{found.dtype} {found.shape}"
            raise EnvError(
                f"{self.name}.reward returned {said}; it must return a number for each env, ({self.num_envs},)"
            )
        return found.astype(np.float64)

    def _keep(self, action: Array, active: Array | None) -> None:
        """Remember the actions, for a replay."""
        steps, kept = self._steps, self._actions
        if self._longest >= len(kept):
            if len(kept) < LONGEST_REPLAY:
                self._actions = kept = np.concatenate([kept, np.zeros_like(kept)])[:LONGEST_REPLAY]
            else:  # too long to be replayed, so what is kept no longer matters
                steps = np.minimum(steps, len(kept) - 1)
        kept[steps, self._rows] = action
        self._steps += self._ones if active is None else active
        self._longest += 1

    def _look(self) -> Array:
        try:
            obs = np.array(self.task.observe(), self._obs.dtype)
        except user_errors() as error:
            raise blame("observe", self.name, error) from error
        if obs.shape != self._obs.shape:
            raise EnvError(f"{self.name} observes {obs.shape} numbers; its space says {self._obs.shape}")
        return obs

    def _info(self, index: int) -> Info:
        try:
            return self.task.last_info(index)
        except SurefootError:
            raise
        except user_errors() as error:
            raise blame("info", self.place(index), error) from error

    def _begin(self, envs: Sequence[int], episodes: Sequence[int]) -> None:
        """Begin these episodes."""
        ids = np.array(envs, np.int32)
        self._episode[ids], self._steps[ids] = episodes, 0
        self._longest = int(self._steps.max())
        sims = self.sims
        try:
            sims.reset(ids)
            for index, seed in zip(envs, self.seeds(envs, episodes), strict=True):
                sims.qpos[index], sims.qvel[index] = self.task.first_state(index, np_random(seed)[0])
            sims.forward(ids)
        except SurefootError:
            raise
        except SimulationFailed as error:
            raise EnvError(f"reset of {self.place(error.index)} failed in MuJoCo: {error}") from error
        except user_errors() as error:
            raise blame("reset", self.name, error) from error

    def seeds(self, envs: Sequence[int], episodes: Sequence[int]) -> list[int]:
        return self._seeds.of(envs, episodes)

    def place(self, index: int) -> str:
        """How an error names an env."""
        episode, steps = int(self._episode[index]), int(self._steps[index])
        (seed,) = self.seeds([index], [episode])
        return f"{self.name} (env {self.first + index}, seed {seed}, episode {episode}, step {steps})"

    def state_dict(self) -> EpisodesState:
        """The same state as that of `GymEnvs`: each can resume runs of the other."""
        steps = self._steps.tolist()
        kept = [self._actions[:count, index].copy() for index, count in enumerate(steps)]
        return {
            "episode": self._episode.tolist(),
            "steps": steps,
            "actions": [actions if len(actions) else None for actions in kept],
        }

    def state_shape(self) -> Shape:
        return episodes_shape(self.num_envs, self.action_space.shape)

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """See `GymEnvs.load_state_dict`. All envs are replayed together."""
        opened = as_episodes(state)
        none = np.zeros((0, *self._shape[1:]), np.float32)
        known = [none if rows is None else np.asarray(rows) for rows in opened["actions"]]
        lengths = np.array([len(rows) for rows in known])
        lost = (lengths != opened["steps"]) | [rows.dtype != np.float32 for rows in known]
        lengths[lost] = 0
        self._begin(range(self.num_envs), opened["episode"])
        self._obs, action = self._look(), np.zeros(self._shape, np.float32)
        for t in range(int(lengths.max())):
            active = (lengths > t) & ~lost
            for index in np.flatnonzero(active).tolist():
                action[index] = known[index][t]
            obs, _, terminated = self._advance(action, active)
            self._obs[active] = obs[active]
            over = terminated if self.time_limit is None else terminated | (self._steps >= self.time_limit)
            lost |= over & active  # it did not end there before
        same = [np.array_equal(row, seen) for row, seen in zip(self._obs.astype(last_obs.dtype), last_obs, strict=True)]
        lost |= ~np.array(same)
        again = np.flatnonzero(lost).tolist()
        if again:
            self._begin(again, [opened["episode"][index] + 1 for index in again])
            self._obs[again] = self._look()[again]
        self._begun = True
        return again

    def episode_numbers(self) -> list[int]:
        return self._episode.tolist()

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of(rows, numbers)

    @property
    def observations(self) -> Array:
        """What every env shows now."""
        return self._obs.copy()

    def close(self) -> None:
        """The simulations are freed, and their threads ended, with the last reference to them."""
        self.__dict__.pop("sims", None)
        self.__dict__.pop("task", None)
