"""PettingZoo's parallel envs with one policy for all agents: every agent of every copy of the env is one row.

Rows are copy-major: agent a of copy c has row c·A + a. An agent that is gone leaves its row invalid until its whole
copy has ended and is reset. Only the `ParallelEnv` interface is used; the package itself is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.backends import Backend
from surefoot.envs.checks import (
    as_number,
    check_first_observation,
    pack_row,
    require_finite,
    supported_spaces,
)
from surefoot.envs.ids import objects_in
from surefoot.envs.masks import MaskReader
from surefoot.envs.open_episodes import OpenEpisodes, close_all
from surefoot.envs.pettingzoo_copy import ONE_PROCESS, PREFIX, AgentOfCopy, Copy, ParallelMaker, common_agents
from surefoot.envs.seeds import EpisodeSeeds
from surefoot.errors import EnvError, UsageError
from surefoot.spaces.layout import MASK, Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.open_episodes import EpisodesState
    from surefoot.envs.pettingzoo_copy import ParallelEnv
    from surefoot.schema import Shape
    from surefoot.types import Actions, Array, GymEnv, GymSpace, Info


class ParallelEnvs:
    """The copies, stepped in this process; resets happen within the step, each with its own seed."""

    exact_seeds, batched_actions = True, False
    render_modes: tuple[str, ...] = ()

    def __init__(
        self,
        make: Callable[[], ParallelEnv],
        num_copies: int,
        run_seed: int,
        max_episode_steps: int | None = None,
        first: int = 0,
    ) -> None:
        """`first`: the index of the first copy in the whole run, for the seeds."""
        self.time_limit, self._seeds = max_episode_steps, EpisodeSeeds(run_seed, first)
        self.copies: list[Copy] = []
        try:
            for index in range(num_copies):
                self.copies.append(Copy(make(), run_seed, first + index, max_episode_steps))
            if len({id(copy.env) for copy in self.copies}) < num_copies:
                raise UsageError("the function that makes the env returned the same env twice; it must make a new one")
            self._prepare(self.copies[0])
        except BaseException:
            self.close()
            raise

    def _prepare(self, first: Copy) -> None:
        self.agents = common_agents(self.copies)
        self.num_agents = len(self.agents)
        self.num_envs = len(self.copies) * self.num_agents
        self.observation_space, self.action_space = supported_spaces(first)
        self._names = [AgentOfCopy(copy, agent) for copy in self.copies for agent in self.agents]
        self._checked, self._open = False, OpenEpisodes(self.action_space, agents=True)
        self._begun = False  # the first copy has already been reset, to look for masks
        self.masks = MaskReader.find(self.observation_space, self.action_space, in_info=lambda: self._asked(first))
        self.layout = Layout(self.observation_space, self.masks.size)
        kind = self.observation_space.dtype if self.layout.plain else self.layout.dtype
        self._obs = np.zeros((self.num_envs, *self.layout.shape), kind)
        self.notes: tuple[str, ...] = (
            f"note: {len(self.copies)} copies × {self.num_agents} agents = {self.num_envs} envs, one policy for all; "
            "steps, episodes and returns are counted per agent",
        )

    def _asked(self, first: Copy) -> bool:
        """Whether an agent's info has a mask after the first reset."""
        first.reset()
        self._begun = True
        return any(MASK in info for info in first.infos.values())

    def reset(self) -> Array:
        for index, copy in enumerate(self.copies):
            if index or not self._begun:
                copy.reset()
            self._see(index)
        self._begun = False
        require_finite(self._obs, "observation", self._names)
        return self._obs.copy()

    def step(self, action: Actions, active: Array | None = None) -> Step:
        size, width = self.num_envs, self.num_agents
        reward = np.zeros(size, np.float64)
        terminated, truncated, valid, first = (np.zeros(size, np.bool_) for _ in range(4))
        final_obs: dict[int, Array] = {}
        final_info: dict[int, Info] = {}
        for index, copy in enumerate(self.copies):
            rows = range(index * width, (index + 1) * width)
            if active is not None:
                self._require_complete(copy)
                if not active[rows.start : rows.stop].any():
                    continue
            acted = list(copy.alive)
            came = copy.step([action[row] for row in rows])
            for row, agent, was in zip(rows, self.agents, acted, strict=True):
                if not was:
                    continue
                valid[row] = True
                reward[row] = as_number(copy.rewards[agent], "reward", self._names[row])
                terminated[row], truncated[row] = copy.ends[agent]
                if terminated[row] or truncated[row]:
                    final_obs[row] = self._final_row(row, copy.observations[agent])
                    final_info[row] = copy.infos.get(agent, {})
                    # Before the reset, because errors name the copy's current episode.
                    require_finite(final_obs[row][None], "final observation", [self._names[row]])
            if not all(np.isfinite(reward[row]) for row in rows):
                require_finite(reward[rows.start : rows.stop], "reward", self._names[rows.start : rows.stop])
            for agent in came:
                first[rows.start + self.agents.index(agent)] = True
            if not any(copy.alive):
                copy.reset()
                first[rows.start : rows.stop] = copy.alive
            self._see(index)
        if active is not None:
            valid &= active
        require_finite(self._obs, "observation", self._names)
        return Step(self._obs.copy(), reward, terminated, truncated, valid, final_obs, final_info, first=first)

    def _require_complete(self, copy: Copy) -> None:
        if copy.incomplete:
            raise UsageError(
                f"{copy} began without all of its agents; learning from whole episodes needs each of them in every "
                "episode. Use an algorithm that learns from rollouts of fixed length (vpg, a2c, ppo, ...)"
            )

    def _see(self, index: int) -> None:
        """Store what the live agents of a copy see. The row of an agent that is gone keeps its last observation."""
        copy = self.copies[index]
        for row, agent, alive in zip(
            range(index * self.num_agents, (index + 1) * self.num_agents), self.agents, copy.alive, strict=True
        ):
            if alive:
                obs = copy.observations[agent]
                if not self._checked:
                    check_first_observation(self._names[row], self.observation_space, obs)
                    self._checked = True
                self._obs[row] = agent_row(self._names[row], obs, copy.infos, self.layout, self.masks)

    def _final_row(self, row: int, obs: object) -> Array:
        return pack_row(self._names[row], obs, self.layout, self.masks.free).copy()

    def state_dict(self) -> EpisodesState:
        return self._open.state_dict(self.copies)

    def state_shape(self) -> Shape:
        return self._open.state_shape(len(self.copies))

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Replay the open episodes; returns the rows of the copies whose replay does not match `last_obs`.

        Those have been reset to a fresh episode: their first observations are in `observations`.
        """
        lost: list[int] = []
        for index, copy in enumerate(self.copies):
            episode, actions = self._open.read(state, index)
            rows = slice(index * self.num_agents, (index + 1) * self.num_agents)
            came_back = actions is not None and copy.replay(episode, actions)
            self._obs[rows] = last_obs[rows]  # including agents that are gone, which a replay does not show
            if came_back:
                self._see(index)
            if not came_back or not np.array_equal(np.asarray(self._obs[rows], last_obs.dtype), last_obs[rows]):
                lost += range(rows.start, rows.stop)
                copy.episode = episode
                copy.reset()
                self._see(index)
        self._begun = False
        return lost

    def episode_numbers(self) -> list[int]:
        if self._begun:  # the reset so far was only to look for masks
            return [-1] * self.num_envs
        return [number for copy in self.copies for number in copy.numbers]

    def episode_seeds(self, rows: Sequence[int], numbers: Sequence[int]) -> list[int]:
        return self._seeds.of([row // self.num_agents for row in rows], numbers)

    @property
    def observations(self) -> Array:
        """What every agent sees now."""
        return self._obs.copy()

    def close(self) -> None:
        close_all(self.copies)


def agent_row(name: AgentOfCopy, obs: object, infos: dict[str, Info], layout: Layout, masks: MaskReader) -> Array:
    """What an agent sees as a row of the layout, with its mask if there is one."""
    mask = None
    if masks.source:
        try:
            mask = masks.row(obs, infos.get(name.agent, {}))
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(f"{name}: {error}") from error
    return pack_row(name, obs, layout, mask)


class PettingZoo(Backend):
    """`pettingzoo:module` or `pettingzoo:file.py:factory`: a parallel env in which every agent is a row."""

    name = "pettingzoo"
    no_workers = ONE_PROCESS
    no_film = "has several agents; it can be trained on and evaluated in, but not filmed or examined"
    one_row_each = False

    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> GymEnv:
        raise UsageError(f"{config.env} {self.no_film}")

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> ParallelEnvs:
        return ParallelEnvs(ParallelMaker(config), num_envs, seed, config.max_episode_steps, first)

    def spaces(self, config: EnvConfig) -> tuple[GymSpace, GymSpace]:
        return ParallelMaker(config).spaces()

    def copy_maker(self, config: EnvConfig) -> ParallelMaker:
        return ParallelMaker(config)

    def code(self, env_id: str) -> str:
        return env_id.removeprefix(PREFIX)

    def candidates(self, typed: str) -> list[str]:
        source, colon, _ = typed.removeprefix(PREFIX).partition(":")
        return [f"{PREFIX}{found}" for found in objects_in(source)] if colon else []
