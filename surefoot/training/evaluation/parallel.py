"""Evaluation in envs of several agents, all of whom play the same policy.

An episode is one of the whole env, with a seed of its own; its return is the mean of its agents' returns, so that the
interval of the mean is over independent episodes, and the mean itself is that of the agents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.envs.checks import as_number, require_sound
from surefoot.envs.masks import MaskReader, Source
from surefoot.envs.open_episodes import close_all
from surefoot.envs.pettingzoo_copy import AgentOfCopy, EvaluationCopy
from surefoot.envs.pettingzoo_envs import agent_row

if TYPE_CHECKING:
    from surefoot.envs.pettingzoo_copy import ParallelMaker
    from surefoot.training.evaluation.agent import Agent
    from surefoot.types import Array


class Table:
    """An open episode of one copy: what its live agents see and remember, and what they have got so far."""

    def __init__(self, agent: Agent, copy: EvaluationCopy, episode: int) -> None:
        self.agent, self.copy = agent, copy
        self.names = [AgentOfCopy(copy, name) for name in copy.agents]
        layout = agent.policy.layout
        source: Source = "observation" if layout.mask_in_obs else "info"
        self._masks = MaskReader(agent.policy.action_space, source if layout.mask_size else None)
        copy.episode = episode - 1
        copy.reset()
        self.memory = _fresh(agent, len(self.names))
        self.returns: dict[str, float] = {}
        self._look()

    def _look(self) -> None:
        self.seated = [index for index, alive in enumerate(self.copy.alive) if alive]
        rows = []
        for index in self.seated:
            name = self.names[index]
            self.returns.setdefault(name.agent, 0.0)
            obs = self.copy.observations[name.agent]
            rows.append(agent_row(name, obs, self.copy.infos, self.agent.policy.layout, self._masks))
        self.rows = np.stack(rows)
        seated = [self.names[index] for index in self.seated]
        require_sound(self.rows, self.agent.policy.layout, "observation", seated)

    def step(self, actions: Any, memory: Array | None) -> bool:
        """Whether the episode is over. `actions`, `memory`: of those who are seated."""
        each: list[Any] = [actions[0]] * len(self.names)  # the dead ones' are not used
        for place, index in enumerate(self.seated):
            each[index] = actions[place]
        if self.memory is not None and memory is not None:
            self.memory[self.seated] = memory
        acting = [self.names[index] for index in self.seated]
        for agent in self.copy.step(each):
            if self.memory is not None:
                self.memory[self.copy.agents.index(agent)] = 0.0
        for name in acting:
            self.returns[name.agent] += as_number(self.copy.rewards[name.agent], "reward", name)
        if not any(self.copy.alive):
            return True
        self._look()
        return False

    @property
    def mean_return(self) -> float:
        return float(np.mean(list(self.returns.values())))


def _fresh(agent: Agent, count: int) -> Array | None:
    memory = agent.policy.initial_memory(count)
    return None if memory is None else memory.cpu().numpy()


def play_parallel(
    agent: Agent,
    make: ParallelMaker,
    *,
    episodes: int,
    seed: int,
    deterministic: bool,
    limit: int,
    num_copies: int,
    abandon: Callable[[], None],
) -> tuple[list[float], list[int], int]:
    """(returns, lengths, episodes that were cut) of a fixed list of episodes, each played to its end."""
    returns, lengths, cut = [0.0] * episodes, [0] * episodes, 0
    with ExitStack() as leaving:
        tables: dict[int, Table] = {}
        for index in range(num_copies):
            copy = EvaluationCopy(make(), seed, index, make.config.max_episode_steps)
            leaving.callback(close_all, [copy])
            tables[index] = Table(agent, copy, index)
        while tables:
            abandon()
            for index, table, over in _turn(agent, list(tables.items()), deterministic):
                episode = table.copy.episode
                lengths[episode] += 1
                if not over:
                    if lengths[episode] < limit:
                        continue
                    cut += 1
                returns[episode] = table.mean_return
                if episode + num_copies < episodes:
                    tables[index] = Table(agent, table.copy, episode + num_copies)
                else:
                    del tables[index]
    return returns, lengths, cut


def _turn(agent: Agent, tables: list[tuple[int, Table]], deterministic: bool) -> list[tuple[int, Table, bool]]:
    """One step of every table, with one call of the policy."""
    held = [table.memory[table.seated] for _, table in tables if table.memory is not None]
    action, memory = agent.act(
        np.concatenate([table.rows for _, table in tables]), np.concatenate(held) if held else None, deterministic
    )
    sent, found, begin = agent.policy.actions.to_env(action), [], 0
    for index, table in tables:
        span = slice(begin, begin + len(table.seated))
        begin = span.stop
        found.append((index, table, table.step(sent[span], None if memory is None else memory[span])))
    return found
