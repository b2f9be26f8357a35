"""What a device reports of iterations of several members, by page: one page is one iteration of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from surefoot.engine.contract import Table
from surefoot.engine.episodes import EpisodeColumns

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.iteration import Recording
    from surefoot.engine.losses import Loss
    from surefoot.types import Array

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

    def __init__(self, recording: Recording, plans: Sequence[Plan], which: Array, columns: Tensor) -> None:
        """`which`: the number of each member's plan, `[agents]`."""
        assert recording.report is not None
        self.recording, self.plans, self.which = recording, plans, which
        self._report, self._columns = recording.report.clone(), columns.clone()
        own, looked = recording.names
        self.names, self.known = [*own, *looked], len(own)

    def read(self, agents: int, num_envs: int) -> None:
        """Wait for the device and keep what it said, by agent."""
        width = len(self.names) + len(self.recording.shown) + 1
        number, rows, carried = np.split(self._report.cpu().numpy(), [1, 1 + agents * width])
        self.rows, self.carried = rows.reshape(agents, width), carried.reshape(2, agents, -1)
        self.ended: Array = self._columns[: int(number[0])].cpu().numpy()

    def sound(self, tolerance: float) -> Array:
        """`[agents]` bool: whose update may stand. The rules are those of `engine.torch.verdict`."""
        known = self.rows[:, : self.known]
        sound = np.isfinite(known).all(1) & (self.rows[:, -1] != 0.0) & (known[:, self.names.index(FINITE)] != 0.0)
        if RATIO_ERROR in self.names[: self.known]:
            sound &= ~(known[:, self.names.index(RATIO_ERROR)] > tolerance)
        found: Array = sound
        return found

    def plan(self, agent: int) -> Plan:
        return self.plans[int(self.which[agent])]

    def sources(self) -> dict[str, int]:
        """The metrics in the order of a run alone, and the column of each; −1: it is the rate, or the algorithm's."""
        names, known = self.names, self.known
        found = {name: at for at, name in enumerate(names[:known]) if name != FINITE}
        found |= {name: at for at, name in enumerate(names) if at >= known and name not in found}
        found |= dict.fromkeys((*self.recording.said, "learning_rate"), -1)
        return found | {name: len(names) + at for at, name in enumerate(self.recording.shown)}

    def metrics(self, agent: int) -> dict[str, float]:
        """Those of a member's update, in the order of a run alone. An instrument that overflows is left out."""
        told, names, known, plan = self.rows[agent].tolist(), self.names, self.known, self.plan(agent)
        found = dict(zip(names[:known], told, strict=False))
        del found[FINITE]
        for name, x in zip(names[known:], told[known:], strict=False):
            if name not in found and math.isfinite(x):
                found[name] = x
        found |= {**self.recording.said, "learning_rate": plan.rate}
        return found | dict(zip(self.recording.shown, told[len(names) : -1], strict=True))


class Ended:
    """The episodes that ended in several pages, by agent."""

    def __init__(self, pages: Sequence[Page], agents: int, num_envs: int) -> None:
        env, ret, length, cut = np.concatenate([page.ended for page in pages]).T
        number = np.repeat(np.arange(len(pages)), [len(page.ended) for page in pages])
        owner = env.astype(np.int64) // num_envs
        order = np.argsort(owner, kind="stable")
        own = (env - owner * num_envs)[order]
        self._all = EpisodeColumns.of_numbers(own, ret[order], length[order], cut[order])
        self._number: Array = number[order]
        self._ends: list[int] = np.searchsorted(owner[order], np.arange(agents + 1)).tolist()

    def of(self, agent: int) -> tuple[EpisodeColumns, Array]:
        """An agent's, in order, and the page of each."""
        ended, own = self._all, slice(self._ends[agent], self._ends[agent + 1])
        columns = EpisodeColumns(ended.env[own], ended.ret[own], ended.length[own], ended.truncated[own])
        return columns, self._number[own]


class Tables:
    """The metrics of several pages, by agent. Some are measured in some updates only."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self.pages, sources = pages, [page.sources() for page in pages]
        self._orders = [tuple(own) for own in sources]
        self._names = tuple(dict.fromkeys(name for order in self._orders for name in order))
        self._at = {name: at for at, name in enumerate(self._names)}
        agents = len(pages[0].rows)
        self._rows: Array = np.full((agents, len(pages), len(self._names)), math.nan)
        self._whole: Array = np.ones(agents, np.bool_)  # an instrument that overflows is left out
        for number, (page, own) in enumerate(zip(pages, sources, strict=True)):
            self._fill(number, page, own)

    def _fill(self, number: int, page: Page, own: dict[str, int]) -> None:
        rows, given = self._rows[:, number], {name: at for name, at in own.items() if at >= 0}
        rows[:, [self._at[name] for name in given]] = page.rows[:, list(given.values())]
        for name, x in page.recording.said.items():
            rows[:, self._at[name]] = x
        rows[:, self._at["learning_rate"]] = np.array([plan.rate for plan in page.plans])[page.which]
        self._whole &= np.isfinite(page.rows[:, page.known : len(page.names)]).all(1)

    def of(self, agent: int) -> list[Table]:
        if self._whole[agent]:
            return [Table(self._names, self._rows[agent], self._orders)]
        each = [page.metrics(agent) for page in self.pages]
        return [Table(tuple(own), np.array([list(own.values())]), [tuple(own)]) for own in each]
