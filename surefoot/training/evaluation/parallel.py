"""Evaluation in multi-agent envs, where all agents play the same policy.

An episode covers the whole env and has its own seed. Its return is the mean of its agents' returns, so that the
confidence interval is over independent episodes, and the overall mean is the mean over agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.checks import as_number, require_sound
from surefoot.envs.masks import MaskReader, Source
from surefoot.envs.open_episodes import close_all
from surefoot.envs.pettingzoo_copy import AgentOfCopy, EvaluationCopy, common_agents
from surefoot.envs.pettingzoo_envs import agent_row
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.envs.pettingzoo_copy import ParallelMaker
    from surefoot.training.evaluation.agent import Agent
    from surefoot.types import Actions, Array


class ParallelEpisodes:
    """Copies of a parallel env, copy-major: agent a of copy c is row c·A + a."""

    def __init__(self, agent: Agent, make: ParallelMaker, num_copies: int, seed: int) -> None:
        self.layout = layout = agent.policy.layout
        source: Source = "observation" if layout.mask_in_obs else "info"
        self._masks = MaskReader(agent.policy.action_space, source if layout.mask_size else None)
        self.time_limit = make.config.max_episode_steps
        self.copies: list[EvaluationCopy] = []
        try:
            for index in range(num_copies):
                self.copies.append(EvaluationCopy(make(), seed, index, self.time_limit))
            self.num_agents = len(common_agents(self.copies))
        except BaseException:
            self.close()
            raise
        self.names = [AgentOfCopy(copy, name) for copy in self.copies for name in copy.agents]
        self.num_envs = len(self.names)
        self.acting = np.zeros(self.num_envs, np.bool_)
        self.observations = np.zeros((self.num_envs, 0))  # until the first reset

    def _rows(self, place: int) -> range:
        return range(place * self.num_agents, (place + 1) * self.num_agents)

    def begin(self, place: int, episode: int) -> None:
        copy = self.copies[place]
        copy.episode = episode - 1
        copy.reset()
        self._look(place)

    def step(self, action: Actions, active: Array | None = None) -> Step:
        valid = self.acting.copy() if active is None else active.copy()
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for place, copy in enumerate(self.copies):
            rows = self._rows(place)
            acted = [row for row in rows if valid[row]]
            if not acted:
                continue
            copy.step([action[row] if valid[row] else action[acted[0]] for row in rows])  # dead agents' are ignored
            for row in acted:
                name = self.names[row]
                reward[row] = as_number(copy.rewards[name.agent], "reward", name)
                terminated[row], truncated[row] = copy.ends[name.agent]
            self._look(place)
        return Step(self.observations, reward, terminated, truncated, valid)

    def _look(self, place: int) -> None:
        """Store what the live agents of a copy see."""
        copy, rows = self.copies[place], self._rows(place)
        self.acting[rows.start : rows.stop] = copy.alive
        seated = [row for row in rows if self.acting[row]]
        if not seated:
            return
        found = [self.names[row] for row in seated]
        seen = np.stack(
            [agent_row(name, copy.observations[name.agent], copy.infos, self.layout, self._masks) for name in found]
        )
        require_sound(seen, self.layout, "observation", found)
        if self.observations.shape[1:] != seen.shape[1:]:
            self.observations = np.zeros((self.num_envs, *seen.shape[1:]), seen.dtype)
        self.observations[seated] = seen

    def close(self) -> None:
        close_all(self.copies)
