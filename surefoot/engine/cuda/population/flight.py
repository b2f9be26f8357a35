"""Iterations of several members that were begun together, and what each of them gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from surefoot.engine.contract import Done, Several
from surefoot.engine.cuda.population.pages import Ended, Tables
from surefoot.engine.episodes import EpisodeColumns
from surefoot.engine.torch.modes import own_modes

if TYPE_CHECKING:
    from surefoot.engine.contract import Turn
    from surefoot.engine.cuda.population.iteration import Population
    from surefoot.engine.cuda.population.pages import Page
    from surefoot.types import Array

MOST_PAGES = 32  # iterations that are begun before any of them is read


class Flight:
    """One or several iterations of the same members, one after the other, that may not have been read."""

    def __init__(self, population: Population, turns: Sequence[Turn]) -> None:
        self.population, self.turns = population, {turn.agent: turn for turn in turns}
        self.pages: list[Page] = []
        self.steps = 0  # of every optimizer, in all of them
        self._done = dict.fromkeys(self.turns, 0)  # iterations that each member has read
        self._before = {agent: population.learners[agent].optimizer.steps for agent in self.turns}
        self._sound: Array | None = None
        self._tables: Tables | None = None

    def add(self, page: Page) -> None:
        self.pages.append(page)
        self.steps += page.recording.steps

    def _read(self) -> Array:
        """Waits for the device once; whose updates may all stand."""
        if self._sound is None:
            population = self.population
            for page in self.pages:
                page.read(population.agents, population.num_envs)
            tolerance = population.learner.ratio_tolerance
            self._sound = np.logical_and.reduce([page.sound(tolerance) for page in self.pages])
            self._ended = Ended(self.pages, population.agents, population.num_envs)
        return self._sound

    def rest(self, agent: int) -> Several | None:
        """What came of all of a member's iterations. None: they have to be ended one by one."""
        population, turn = self.population, self.turns[agent]
        learner, collector = population.learners[agent], population.collectors[agent]
        if self._done[agent] or learner.adaptive_kl is not None or not self._read()[agent]:
            return None
        if self._tables is None:
            self._tables = Tables(self.pages)
        count, last = len(self.pages), self.pages[-1]
        self._done[agent], learner.update = count, turn.update + count - 1
        learner.optimizer.rate_factor = last.plan(agent).factor
        learner.optimizer.steps += self.steps
        collector.tracker.carry(*last.carried[:, agent])
        episodes, number = self._ended.of(agent)
        return Several(collector.length * population.num_envs, count, episodes, number, self._tables.of(agent))

    def end(self, agent: int) -> tuple[Done | None, bool]:
        """What came of a member's next iteration, and whether it was the last. None: one of them must not stand, and
        what was not read is taken back.
        """
        population, sound, number = self.population, self._read(), self._done[agent]
        if not sound[agent]:
            self.redo(agent)
            return None, True
        page, learner, collector = self.pages[number], population.learners[agent], population.collectors[agent]
        self._done[agent], last, plan = number + 1, number + 1 == len(self.pages), page.plan(agent)
        learner.update, learner.optimizer.rate_factor = self.turns[agent].update + number, plan.factor
        learner.optimizer.steps += page.recording.steps
        metrics = page.metrics(agent)
        learner.adapt_rate(metrics["kl"])
        if last:
            collector.tracker.carry(*page.carried[:, agent])
        episodes, numbers = self._ended.of(agent)
        own = numbers == number
        ended = EpisodeColumns(episodes.env[own], episodes.ret[own], episodes.length[own], episodes.truncated[own])
        return Done(collector.length * population.num_envs, ended, metrics), last

    def redo(self, agent: int) -> None:
        """The member is as after the last iteration that it has read: all are taken back, and those are done again in
        the ordinary way, which gives the same bits. Its own tensors are its state then.
        """
        population, turn = self.population, self.turns[agent]
        collector, learner, algorithm = population.parts[agent]
        population.take_back(agent)
        population.give(agent)
        learner.optimizer.steps = self._before[agent]
        for number in range(self._done[agent]):
            remaining = turn.remaining[number]
            rollout = collector.collect(remaining)
            collector.tracker.take()
            learner.update = turn.update + number
            with own_modes(gradients=True):
                learner.set_rates(remaining)
                algorithm.update(learner, rollout)
                learner.absorb(rollout)
