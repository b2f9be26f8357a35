"""Runs that differ in their seed alone, as one curve: its middle and a band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.analysis.statistics import iqm, mean
from surefoot.dashboard.curves import Array, Curve, smoothed
from surefoot.runs.catalog import Entry

MIDDLES = ("iqm", "mean")


def grouped(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Runs of the same settings together, in the order of the first of each. The page knows them by the same keys."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.group or entry.id, []).append(entry)
    return found


def label_of(entries: Sequence[Entry], *, seeds: bool = True) -> str:
    """What a group is called: what its runs have in common."""
    first = entries[0]
    names = {entry.name for entry in entries if entry.name}
    called = f"{names.pop()} · " if len(names) == 1 else ""
    what = f"{called}{first.env or '?'} · {first.algo or '?'}"
    if not seeds or (len(entries) == 1 and first.seed is None):
        return what
    return f"{what} · {len(entries)} seeds" if len(entries) > 1 else f"{what} · seed {first.seed}"


def merged(curves: Sequence[Curve], middle: str, share: float, points: int) -> tuple[Array, Array, Array, Array]:
    """(x, middle, low, high) on a common grid, where at least half of the runs have got to.

    The band spans the middle half of the runs, and all of them if they are fewer than five.
    """
    known = [(curve, smoothed(curve, share)) for curve in curves if len(curve.x)]
    if not known:
        return (np.empty(0),) * 4
    ends = sorted(float(curve.x[-1]) for curve, _ in known)
    start, end = min(float(curve.x[0]) for curve, _ in known), ends[(len(ends) - 1) // 2]
    longest = max(len(curve.x) for curve, _ in known)
    grid = np.linspace(start, end, max(2, min(points, longest)))
    table = np.array([np.interp(grid, curve.x, y, left=np.nan, right=np.nan) for curve, y in known])
    there = np.isfinite(table).sum(0)
    kept = 2 * there >= len(known)
    grid, table, there = grid[kept], table[:, kept], there[kept]
    of, centre = (iqm if middle == "iqm" else mean), np.empty(len(grid))
    for count in np.unique(there):  # runs that start later or end earlier leave gaps
        columns = table[:, there == count].T
        centre[there == count] = of([columns[np.isfinite(columns)].reshape(-1, count)])
    low, high = np.nanpercentile(table, (0.0, 100.0) if len(known) < 5 else (25.0, 75.0), axis=0)
    return grid, centre, low, high
