"""Collects what happened since the last row of metrics, and makes the next row from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from surefoot.engine.contract import Table
from surefoot.engine.episodes import EPISODE, Episode, EpisodeColumns, EpisodeState, returns_of
from surefoot.engine.shares import MAXIMA
from surefoot.schema import Items, MapOf, Number, Record, Shape, Whole

if TYPE_CHECKING:
    from surefoot.engine.contract import Several
    from surefoot.types import Array, MetricsRow

NOISE, SIGNAL = "gradient_noise", "gradient_signal"  # a row has their quotient: single ones are too noisy


class JournalState(TypedDict):
    next_row: int
    updates: int
    episodes: int
    recent: list[float]
    metrics: list[dict[str, float]]
    finished: list[EpisodeState]


class Journal:
    """Counts, recent returns, and the updates and episodes that go into the next row."""

    def __init__(self, interval: int, info_keys: Sequence[str] = ()) -> None:
        self.interval, self.info_keys = interval, tuple(info_keys)
        self.next_row = interval
        self.updates = self.episodes = 0
        self.recent: list[float] = []  # returns of the last 100 episodes
        self.latest: Sequence[Episode] = []  # episodes that ended in the last rollout
        self._metrics: list[dict[str, float] | Table] = []
        self._finished: list[Sequence[Episode]] = []  # of each update

    def add(self, metrics: dict[str, float], finished: Sequence[Episode]) -> None:
        """Add one update and the episodes that ended in its rollout."""
        self.updates += 1
        self.episodes += len(finished)
        self._metrics.append(metrics)
        if finished:
            self._finished.append(finished)
        self.latest = finished
        self.recent = (self.recent + returns_of(finished[-100:]))[-100:]

    def add_several(self, several: Several) -> None:
        """The same of several updates."""
        episodes, last = several.episodes, several.number == several.updates - 1
        self.updates += several.updates
        self.episodes += len(episodes)
        self._metrics += several.tables
        if episodes:
            self._finished.append(episodes)
        self.latest = episodes[len(episodes) - int(last.sum()) :]
        self.recent = (self.recent + returns_of(episodes[-100:]))[-100:]

    @property
    def open(self) -> bool:
        """Whether anything happened since the last row."""
        return bool(self._metrics)

    def due(self, step: int) -> bool:
        return step >= self.next_row

    def row(self, step: int) -> MetricsRow:
        """Means over the updates and episodes since the last row."""
        return self.cut(step)()

    def cut(self, step: int) -> Callable[[], MetricsRow]:
        """The same, to be computed later; the next row begins now."""
        head: MetricsRow = {"step": step, "update": self.updates, "episodes": self.episodes}
        found = partial(self._row, head, self._metrics, self._finished)
        self._metrics, self._finished = [], []
        self.next_row = step - step % self.interval + self.interval
        return found

    def _row(
        self, row: MetricsRow, several: list[dict[str, float] | Table], finished: list[Sequence[Episode]]
    ) -> MetricsRow:
        returns, lengths, truncated = _columns(finished)
        row["episode_return"] = _mean(returns) if finished else None
        row["episode_length"] = _mean(lengths) if finished else None
        for key in self.info_keys:
            found = [e.info[key] for e in chain(*finished) if key in e.info]
            row[f"info/{key}"] = _mean(found) if found else None
        row["time_limit_fraction"] = _mean(truncated) if finished else None
        columns = _by_name(several)
        noise, signal = columns.pop(NOISE, []), columns.pop(SIGNAL, [])
        for name, column in columns.items():
            row[name] = max(column) if name in MAXIMA else _mean(column)
        if noise:  # null: the signal drowns in the noise
            row["gradient_noise_scale"] = float(np.sum(noise) / np.sum(signal)) if np.sum(signal) > 0.0 else None
        return row

    def state_dict(self) -> JournalState:
        return {
            "next_row": self.next_row,
            "updates": self.updates,
            "episodes": self.episodes,
            "recent": list(self.recent),
            "metrics": list(chain(*map(_as_dicts, self._metrics))),
            "finished": [cast(EpisodeState, asdict(episode)) for episode in chain(*self._finished)],
        }

    def state_shape(self) -> Shape:
        return Record(
            next_row=Whole(),
            updates=Whole(),
            episodes=Whole(),
            recent=Items(Number()),
            metrics=Items(MapOf(Number(finite=False))),
            finished=Items(EPISODE),
        )

    def load_state_dict(self, state: JournalState) -> None:
        self.next_row, self.updates, self.episodes = state["next_row"], state["updates"], state["episodes"]
        self.recent, self._metrics = list(state["recent"]), [dict(metrics) for metrics in state["metrics"]]
        finished = [Episode(**episode) for episode in state["finished"]]
        self._finished = [finished] if finished else []


def _by_name(several: list[dict[str, float] | Table]) -> dict[str, list[float]]:
    """The values of each metric: some are measured in some updates only."""
    columns: dict[str, list[float]] = {}
    for metrics in several:
        if isinstance(metrics, Table):
            for name, column in metrics.columns():
                columns.setdefault(name, []).extend(column)
        else:
            for name, x in metrics.items():
                columns.setdefault(name, []).append(x)
    return columns


def _as_dicts(metrics: dict[str, float] | Table) -> list[dict[str, float]]:
    return metrics.as_dicts() if isinstance(metrics, Table) else [dict(metrics)]


def _columns(finished: list[Sequence[Episode]]) -> tuple[Array, Array, Array]:
    """Returns, lengths and whether the clock ended them, of all episodes, float64."""
    found: tuple[list[Array], list[Array], list[Array]] = [], [], []
    for episodes in finished:
        if isinstance(episodes, EpisodeColumns):
            rows: Iterable[object] = (episodes.ret, episodes.length, episodes.truncated)
        else:
            rows = zip(*((episode.ret, episode.length, episode.truncated) for episode in episodes), strict=True)
        for column, more in zip(found, rows, strict=True):
            column.append(np.asarray(more, np.float64))
    ret, length, truncated = (np.concatenate(column) if column else np.zeros(0) for column in found)
    return ret, length, truncated


def _mean(values: Sequence[float] | Array) -> float:
    """The same bits as `np.mean`, in a third of its time: short rollouts write many rows."""
    return float(np.asarray(values, np.float64).sum() / len(values))
