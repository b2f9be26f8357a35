"""Curves as a page can draw them: few points, whatever the length of the log.

A short log is kept as columns, and new lines are added as they come. A long one (more than EXACT bytes in view) is
sampled: a few lines are read at each of thousands of evenly spaced places, and zooming in reads the lines between.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from surefoot.analysis.curves import Curve, curve_of
from surefoot.analysis.statistics import Array
from surefoot.runs import RunDirectory
from surefoot.runs.columns import LogFile, columns_of, names_in, open_log

EXACT = 8 * 2**20  # bytes of a log that is read completely
PLACES = 2000  # places that are looked at in a longer one
GROWTH = 0.005  # share by which a long log grows before it is sampled again
KEPT = 400  # columns in memory
AXES = {"step": "steps", "update": "updates", "seconds": "wall time"}


@dataclass
class _Column:
    """The values of one name up to byte `end` of a log."""

    inode: tuple[int, int]
    end: int
    values: Array


class Columns:
    """Columns of logs. Each read continues where the last one ended. Threads take turns."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Path, str], _Column] = OrderedDict()
        self._sampled: OrderedDict[tuple[object, ...], tuple[int, dict[str, Array]]] = OrderedDict()
        self._turn = Lock()

    def read(
        self, path: Path, names: list[str], span: tuple[str, float, float] | None
    ) -> tuple[dict[str, Array], bool]:
        """(columns of the same rows, whether they are a sample). `span`: only rows whose (name) is from … to …"""
        with self._turn, open_log(path) as log:
            if log is None:
                return {name: np.empty(0) for name in names}, False
            if log.size <= EXACT:
                return self._whole(path, log, names, span), False
            start, stop = (0, log.size) if span is None else (log.find(span[0], span[1]), log.find(span[0], span[2]))
            last = log.line_at(stop) if span else None
            stop = stop if last is None else last[0] + len(last[1])
            if stop - start <= EXACT:
                return _arrays(columns_of(b"".join(log.chunks(start, stop)), names)), False
            return self._sample(path, log, names, start, stop), True

    def _whole(
        self, path: Path, log: LogFile, names: list[str], span: tuple[str, float, float] | None
    ) -> dict[str, Array]:
        wanted = list(dict.fromkeys([*names, *([span[0]] if span else [])]))
        found = {name: self._column(path, log, name) for name in wanted}
        if span is None:
            return found
        x = found[span[0]]
        inside = np.flatnonzero((x >= span[1]) & (x <= span[2]))
        if not len(inside):
            return {name: np.empty(0) for name in names}
        rows = slice(max(0, inside[0] - 1), inside[-1] + 2)  # one more at each side: lines reach the edge
        return {name: found[name][rows] for name in names}

    def _column(self, path: Path, log: LogFile, name: str) -> Array:
        known = self._known.get((path, name))
        if known is None or known.inode != log.inode or not log.begins_line(known.end):
            known = _Column(log.inode, 0, np.empty(0))
        if known.end < log.size:
            new = columns_of(b"".join(log.chunks(known.end, log.size)), [name])[name]
            known = _Column(log.inode, log.size, np.concatenate([known.values, new]))
        self._known[path, name] = known
        self._known.move_to_end((path, name))
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known.values

    def _sample(self, path: Path, log: LogFile, names: list[str], start: int, stop: int) -> dict[str, Array]:
        """A growing log is sampled again once it has grown enough to be seen."""
        key = (path, log.inode, tuple(names), start, stop if stop < log.size else None)
        known = self._sampled.get(key)
        if known is not None and known[0] <= stop <= known[0] * (1 + GROWTH):
            return known[1]
        found = _arrays(columns_of(log.sample(start, stop, PLACES), names))
        self._sampled[key] = (stop, found)
        while len(self._sampled) > KEPT:
            self._sampled.popitem(last=False)
        return found

    def names(self, run: RunDirectory) -> list[str]:
        """The metrics that a run has, from rows all over its log."""
        with open_log(run.metrics) as log:
            if log is None:
                return []
            lines = b"".join(log.chunks(0, log.size)) if log.size < 2**17 else log.sample(0, log.size, 100)
        return [name for name in names_in(lines) if name not in ("step", "update", "seconds")]


def _arrays(columns: dict[str, list[float]]) -> dict[str, Array]:
    return {name: np.array(values) for name, values in columns.items()}


def read_curve(
    columns: Columns, run: RunDirectory, metric: str, axis: str, span: tuple[float, float] | None
) -> tuple[Curve, bool]:
    """(a metric of a run over steps, updates or seconds, whether it is a sample). `span`: what is in view."""
    clock = _clock(columns, run, span) if axis == "seconds" else None
    if clock is None:
        within = (axis, *span) if span else None
    elif not len(clock.x):
        return clock, False
    else:
        within = ("step", float(clock.x[0]), float(clock.x[-1])) if span else None
    name = axis if clock is None else "step"
    found, sampled = columns.read(run.metrics, [name, metric], within)
    curve = curve_of(found[name], found[metric])
    return curve if clock is None else Curve(np.interp(curve.x, clock.x, clock.y), curve.y), sampled


def _clock(columns: Columns, run: RunDirectory, span: tuple[float, float] | None) -> Curve:
    """The seconds at which steps were done."""
    within = ("seconds", *span) if span else None
    found, _ = columns.read(run.timings, ["step", "seconds"], within)
    return curve_of(found["step"], found["seconds"])
