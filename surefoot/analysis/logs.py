"""The metrics of one run as columns, each read when it is asked for.

A curve needs two of forty columns, and a long run has a million rows. So columns are taken from the text of our own
regular rows (`runs.columns`). Rows that look different are decoded one by one, which also finds damage.
"""

from __future__ import annotations

from math import nan
from pathlib import Path

import numpy as np

from surefoot.analysis.curves import AXES, Axis, Curve, as_number, curve_of, metric_names, read_rows
from surefoot.analysis.statistics import Array
from surefoot.runs import Run
from surefoot.runs.columns import columns_of, is_regular, open_log


class Log:
    """What a run has logged so far. CheckpointError: it is damaged."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._columns: dict[str, Array] = {}
        self._ends: dict[Path, int] = {}  # where a log ended when it was first read: the run may still be training
        self._rows: list[dict[str, object]] | None = None  # decoded rows, if the log is not regular
        self.column("step")

    def curve(self, metric: str, axis: Axis = "steps") -> Curve:
        x, y = self.column(AXES[axis][0]), self.column(metric)
        rows = min(len(x), len(y))  # they differ if the log changed while we read it
        return curve_of(x[:rows], y[:rows])

    def column(self, name: str) -> Array:
        """A value per row, NaN where there is none; wall times are those of the same step."""
        if name not in self._columns:
            found = self._read(self._run.directory.metrics, name)
            if name != "step" and self._rows is None and not np.isfinite(found).any():
                found = self._timed(name)
            if self._rows is not None:
                found = self._decoded(name)
            self._columns[name] = found
        return self._columns[name]

    def names(self) -> list[str]:
        """Everything that is a number in some row."""
        return metric_names(read_rows(self._run))

    def _timed(self, name: str) -> Array:
        path = self._run.directory.timings
        at = dict(zip(self._read(path, "step").tolist(), self._read(path, name).tolist(), strict=False))
        return np.array([at.get(step, nan) for step in self.column("step").tolist()], np.float64)

    def _decoded(self, name: str) -> Array:
        values = (as_number(row.get(name)) for row in self._rows or ())
        return np.array([nan if value is None else value for value in values], np.float64)

    def _read(self, path: Path, name: str) -> Array:
        found: list[float] = []
        with open_log(path) as log:
            regular = log is not None and self._rows is None
            if log is not None and regular:
                end = self._ends.setdefault(path, log.size)
                for piece in log.chunks(0, min(end, log.size)):
                    regular = regular and is_regular(piece)
                    found += columns_of(piece, [name])[name] if regular else []
        if not regular and self._rows is None:
            self._rows = read_rows(self._run)
        return np.array(found, np.float64)
