"""Iterations of several members that were begun together, and what each of them gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from surefoot.engine.contract import Done
from surefoot.engine.episodes import EpisodeColumns
from surefoot.engine.torch.modes import own_modes

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.contract import Turn
    from surefoot.engine.cuda.iteration import Recording
    from surefoot.engine.cuda.population.iteration import Population
    from surefoot.engine.losses import Loss
    from surefoot.types import Array

MOST_PAGES = 16  # iterations that are begun before any of them is read
FINITE, RATIO_ERROR = "parameters_finite", "ratio_error"  # metrics that decide whether an update may stand


class Plan(NamedTuple):
    """What a member is told before an iteration."""

    loss: Loss
    numbers: list[float]
    table: Array  # of the optimizer's rates
    limit: float  # the largest norm of a gradient
    rate: float
    factor: float


class Page:
    """One iteration of all members: what the device reports of it, first there, then on the host."""

    def __init__(self, recording: Recording, plans: dict[int, Plan | None], columns: Tensor) -> None:
        assert recording.report is not None
        self.recording, self.plans = recording, plans
        self._report, self._columns = recording.report.clone(), columns.clone()
        own, looked = recording.names
        self.names, self.known = [*own, *looked], len(own)

    def read(self, agents: int, num_envs: int) -> None:
        """Wait for the device and keep what it said, by agent."""
        width = len(self.names) + len(self.recording.shown) + 1
        number, rows, carried = np.split(self._report.cpu().numpy(), [1, 1 + agents * width])
        self.rows, self.carried = rows.reshape(agents, width), carried.reshape(2, agents, -1)
        env, ret, length, cut = self._columns[: int(number[0])].cpu().numpy().T
        owner = env.astype(np.int64) // num_envs
        order = np.argsort(owner, kind="stable")
        own = (env - owner * num_envs)[order]
        self._ended = EpisodeColumns.of_numbers(own, ret[order], length[order], cut[order])
        self._ends: list[int] = np.searchsorted(owner[order], np.arange(agents + 1)).tolist()
        self._told: list[list[float]] = self.rows.tolist()

    def sound(self, tolerance: float) -> Array:
        """`[agents]` bool: whose update may stand. The rules are those of `engine.torch.verdict`."""
        known = self.rows[:, : self.known]
        sound = np.isfinite(known).all(1) & (self.rows[:, -1] != 0.0) & (known[:, self.names.index(FINITE)] != 0.0)
        if RATIO_ERROR in self.names[: self.known]:
            sound &= ~(known[:, self.names.index(RATIO_ERROR)] > tolerance)
        found: Array = sound
        return found

    def metrics(self, agent: int) -> dict[str, float]:
        """Those of a member's update, in the order of a run alone. An instrument that overflows is left out."""
        told, names, known, plan = self._told[agent], self.names, self.known, self.plans[agent]
        assert plan is not None
        found = dict(zip(names[:known], told, strict=False))
        del found[FINITE]
        for name, x in zip(names[known:], told[known:], strict=False):
            if name not in found and math.isfinite(x):
                found[name] = x
        found |= {**self.recording.said, "learning_rate": plan.rate}
        return found | dict(zip(self.recording.shown, told[len(names) : -1], strict=True))

    def episodes(self, agent: int) -> EpisodeColumns:
        ended, own = self._ended, slice(self._ends[agent], self._ends[agent + 1])
        return EpisodeColumns(ended.env[own], ended.ret[own], ended.length[own], ended.truncated[own])


class Flight:
    """One or several iterations of the same members, one after the other, that may not have been read."""

    def __init__(self, population: Population, turns: Sequence[Turn]) -> None:
        self.population, self.turns = population, {turn.agent: turn for turn in turns}
        self.pages: list[Page] = []
        self.steps = 0  # of every optimizer, in all of them
        self._done = dict.fromkeys(self.turns, 0)  # iterations that each member has read
        self._before = {agent: population.learners[agent].optimizer.steps for agent in self.turns}
        self._sound: Array | None = None

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
        return self._sound

    def end(self, agent: int) -> tuple[Done | None, bool]:
        """What came of a member's next iteration, and whether it was the last. None: one of them must not stand, and
        what was not read is taken back.
        """
        population, sound, number = self.population, self._read(), self._done[agent]
        if not sound[agent]:
            self.redo(agent)
            return None, True
        page, learner, collector = self.pages[number], population.learners[agent], population.collectors[agent]
        self._done[agent], last, plan = number + 1, number + 1 == len(self.pages), page.plans[agent]
        assert plan is not None
        learner.update, learner.optimizer.rate_factor = self.turns[agent].update + number, plan.factor
        learner.optimizer.steps += page.recording.steps
        metrics = page.metrics(agent)
        learner.adapt_rate(metrics["kl"])
        if last:
            collector.tracker.carry(*page.carried[:, agent])
        return Done(collector.length * population.num_envs, page.episodes(agent), metrics), last

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
