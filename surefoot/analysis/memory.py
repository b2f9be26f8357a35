"""What the rules of the diagnosis remember of the rows and episodes before: small, however long the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import repeat
from typing import NotRequired, TypedDict

from surefoot.schema import Flag, Items, MapOf, Number, Optional, Record, Shape, Whole

MOST = 64  # values of a series


class SeriesState(TypedDict):
    values: list[float]
    block: int
    total: float
    count: int


class Series:
    """A metric over a run, as at most 64 means over equally many rows."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.block = 1
        self._total, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._total, self._count = self._total + value, self._count + 1
        if self._count < self.block:
            return
        self.values.append(self._total / self._count)
        self._total, self._count = 0.0, 0
        self._changed()
        if len(self.values) == MOST:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=True)]
            self.block *= 2

    def _changed(self) -> None:
        """Forget what several rules ask of the same values."""
        for name in ("highest", "median", "trend"):
            vars(self).pop(name, None)

    @cached_property
    def highest(self) -> float:
        return max(self.values, default=math.nan)

    @cached_property
    def median(self) -> float:
        return sorted(self.values)[len(self.values) // 2] if self.values else math.nan

    @property
    def ends(self) -> tuple[float, float]:
        """Means of the first tenth and of the last quarter."""
        first, last = _ends(self.values)
        return _mean(first), _mean(last)

    @cached_property
    def trend(self) -> int | None:
        """1 (-1) if the last quarter lies above (below) the first tenth by more than chance, else 0; None: too few
        values to tell.
        """
        return _change(*_ends(self.values)) if len(self.values) >= 10 else None

    @property
    def stalled(self) -> bool:
        """The last quarter does not lie above all those before it by more than chance."""
        size = len(self.values) // 4
        quarters = [self.values[at * size : (at + 1) * size] for at in range(3)]
        return size >= 4 and any(_change(quarter, self.values[-size:]) < 1 for quarter in quarters)

    def state_dict(self) -> SeriesState:
        return {"values": list(self.values), "block": self.block, "total": self._total, "count": self._count}

    def load_state_dict(self, state: SeriesState) -> None:
        self.values, self.block = [float(value) for value in state["values"]], int(state["block"])
        self._total, self._count = float(state["total"]), int(state["count"])
        self._changed()


SERIES = Record(values=Items(Number()), block=Whole(), total=Number(), count=Whole())


def _ends(values: list[float]) -> tuple[list[float], list[float]]:
    return values[: max(4, len(values) // 10)], values[-max(4, len(values) // 4) :]


def _change(before: list[float], after: list[float]) -> int:
    """1 (-1) if values are higher (lower) than before by more than chance, else 0."""
    by_chance = math.sqrt(_variance(before) / len(before) + _variance(after) / len(after))
    change = _mean(after) - _mean(before)
    if change > 0:  # a start with both kinds of episodes may vary far more than the end
        by_chance = min(by_chance, math.sqrt(_variance(after)))
    least = max(3.0 * by_chance, 1e-3 * abs(_mean(before)))
    return 0 if abs(change) <= least else 1 if change > 0 else -1


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _variance(values: list[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)


class EnvState(TypedDict):
    count: int
    total: float
    squares: float
    step: int


class EnvTally:
    """The episodes of one of the run's envs."""

    def __init__(self) -> None:
        self.count = 0
        self.total = self.squares = 0.0  # sums over their returns
        self.step = 0  # the run's, when the last one ended

    def add(self, ret: float, step: int) -> None:
        self.count, self.step = self.count + 1, step
        self.total, self.squares = self.total + ret, self.squares + ret * ret

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation of the returns."""
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2)) if self.count else math.nan

    def without(self, other: EnvTally) -> EnvTally:
        rest = EnvTally()
        rest.count, rest.step = self.count - other.count, self.step
        rest.total, rest.squares = self.total - other.total, self.squares - other.squares
        return rest

    def state_dict(self) -> EnvState:
        return {"count": self.count, "total": self.total, "squares": self.squares, "step": self.step}

    def load_state_dict(self, state: EnvState) -> None:
        self.count, self.step = int(state["count"]), int(state["step"])
        self.total, self.squares = float(state["total"]), float(state["squares"])


ENV = Record(count=Whole(), total=Number(finite=False), squares=Number(finite=False), step=Whole())
MOST_ENVS = 1024  # that are told apart: a GPU steps many more, which no one could look at one by one
KEPT = ("episode_return", "kl", "explained_variance", "entropy")  # the metrics that have a series


class MemoryState(TypedDict):
    series: dict[str, SeriesState]
    first: dict[str, float]
    last: dict[str, float]
    since: dict[str, int]
    envs: dict[str, EnvState]
    all_envs: EnvState
    longest: int
    critic_moved: bool
    largest_kl: NotRequired[float | None]  # not in older runs


class Memory:
    """Series of a few metrics, the first and the last value of all, and a tally of every env's episodes."""

    def __init__(self) -> None:
        self.series = {name: Series() for name in KEPT}
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.since: dict[str, int] = {}  # rule -> first update of the stretch in which it holds
        self.envs: dict[int, EnvTally] = {}
        self.all_envs = EnvTally()
        self.longest = 0  # episode
        self.critic_moved = False  # an update has changed what the critic says
        self.largest_kl = 0.0  # in one update

    def add_episodes(self, episodes: Iterable[tuple[int, float, int]], step: int | list[int]) -> None:
        """(env, return, length) of the episodes that ended up to this step of the run, or up to that of each."""
        envs, everyone, longest = self.envs, self.all_envs, self.longest
        count, total, squares = everyone.count, everyone.total, everyone.squares
        steps = repeat(step) if isinstance(step, int) else step
        for (env, ret, length), at in zip(episodes, steps, strict=False):  # with a GPU, there are thousands per update
            if env < MOST_ENVS:
                if env not in envs:
                    envs[env] = EnvTally()
                envs[env].add(ret, at)
            count, total, squares = count + 1, total + ret, squares + ret * ret
            if length > longest:
                longest = length
        if count > everyone.count:
            everyone.step = step if isinstance(step, int) else step[-1]
        everyone.count, everyone.total, everyone.squares, self.longest = count, total, squares, longest

    @property
    def frozen(self) -> bool:
        """No update that was measured has changed the critic."""
        return "explained_variance_after" in self.last and not self.critic_moved

    def add_row(self, row: Mapping[str, float | None]) -> None:
        before, after = row.get("explained_variance"), row.get("explained_variance_after")
        if before is not None and after is not None and not abs(after - before) < 1e-4:
            self.critic_moved = True
        for name, value in row.items():
            if value is not None and math.isfinite(value):
                self.first.setdefault(name, float(value))
                self.last[name] = float(value)
                if name == "kl":
                    self.largest_kl = max(self.largest_kl, float(value))
                if name in self.series:
                    self.series[name].add(float(value))

    def state_dict(self) -> MemoryState:
        return {
            "series": {name: series.state_dict() for name, series in self.series.items()},
            "first": dict(self.first),
            "last": dict(self.last),
            "since": dict(self.since),
            "envs": {str(env): tally.state_dict() for env, tally in self.envs.items()},
            "all_envs": self.all_envs.state_dict(),
            "longest": self.longest,
            "critic_moved": self.critic_moved,
            "largest_kl": self.largest_kl,
        }

    def load_state_dict(self, state: MemoryState) -> None:
        for name, series in self.series.items():
            if name in state["series"]:
                series.load_state_dict(state["series"][name])
        self.first, self.last, self.since = dict(state["first"]), dict(state["last"]), dict(state["since"])
        self.envs = {int(env): EnvTally() for env in state["envs"] if env.isdecimal()}
        for env, tally in self.envs.items():
            tally.load_state_dict(state["envs"][str(env)])
        self.all_envs.load_state_dict(state["all_envs"])
        self.longest, self.critic_moved = int(state["longest"]), bool(state["critic_moved"])
        self.largest_kl = float(state.get("largest_kl") or 0.0)


def memory_shape() -> Shape:
    return Record(
        series=MapOf(SERIES),
        first=MapOf(Number()),
        last=MapOf(Number()),
        since=MapOf(Whole()),
        envs=MapOf(ENV),
        all_envs=ENV,
        longest=Whole(),
        critic_moved=Flag(),
        largest_kl=Optional(Number(), later=True),
    )
