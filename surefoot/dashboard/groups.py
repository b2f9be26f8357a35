"""Runs that differ only in their seeds, as one curve with a band."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from surefoot.analysis.curves import Curve, at, smooth
from surefoot.analysis.groups import read_members, varied_settings
from surefoot.analysis.statistics import Array, iqm, mean
from surefoot.runs import Run, RunDirectory
from surefoot.runs.catalog import Entry

MIDDLES = ("iqm", "mean")


def grouped(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Runs of the same settings together, in the order of the first of each. The page knows them by the same keys."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.group or entry.id, []).append(entry)
    return found


def labels(groups: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    """What each group is called: by its env, its algorithm, the settings that set it apart from the others, and its
    seeds."""
    apart = _apart_by_key(groups)
    return {key: _joined(_name(group), *_trained(group[0]), apart[key], _seeds(group)) for key, group in groups.items()}


def short_labels(groups: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    """The same without the seeds, and without the env if all have the same one."""
    apart, several = _apart_by_key(groups), len({group[0].env for group in groups.values()}) > 1
    return {key: _joined(_name(group), *_trained(group[0], env=several), apart[key]) for key, group in groups.items()}


def _joined(*words: str) -> str:
    return " · ".join(word for word in words if word)


def _trained(entry: Entry, *, env: bool = True) -> list[str]:
    """The env and the algorithm; the id of a run whose files do not say them."""
    if entry.env is None and entry.algo is None:
        return [entry.id]
    return [entry.env or "?"] * env + [entry.algo or "?"]


def _name(group: Sequence[Entry]) -> str:
    names = {entry.name for entry in group if entry.name}
    return names.pop() if len(names) == 1 else ""


def _seeds(group: Sequence[Entry]) -> str:
    if len(group) > 1:
        return f"{len(group)} seeds"
    return "" if group[0].seed is None else f"seed {group[0].seed}"


def _apart_by_key(groups: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    firsts = {key: group[0] for key, group in groups.items()}
    found = apart(list(firsts.values())) if len(firsts) > 1 else {}
    return {key: found.get(first.id, "") for key, first in firsts.items()}


def apart(entries: Sequence[Entry]) -> dict[str, str]:
    """By run: its values of the settings that differ between runs of the same env and algorithm."""
    files = ((entry.directory.path, entry.directory.config, entry.directory.manifest) for entry in entries)
    read = tuple((path, _stamp(config)) for path, config, manifest in files if _stamp(config) and _stamp(manifest))
    found = _values_apart(read)
    return {entry.id: found.get(entry.directory.path, "") for entry in entries}


@lru_cache(64)
def _values_apart(read: tuple[tuple[Path, int], ...]) -> dict[Path, str]:
    """The time stamps of the settings' files are there for the cache: charts ask for labels with every new row."""
    members, _ = read_members(Run(RunDirectory(path)) for path, _ in read)
    varied = varied_settings(members)
    found = {}
    for member in members:
        values = [(name, member.settings[name]) for name in varied[member.algo] if name in member.settings]
        found[member.run.path] = ", ".join(f"{name}={value}" for name, value in values)
    return found


def _stamp(file: Path) -> int:
    """When a file was written; 0 if it is missing, a link or not a regular file."""
    try:
        status = os.lstat(file)
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0


def smoothed(curve: Curve, share: float) -> Curve:
    """The moving average over this share of the curve."""
    return smooth(curve, round(share * len(curve.x)))


def merged(curves: Sequence[Curve], middle: str, share: float, points: int) -> tuple[Array, Array, Array, Array]:
    """(x, middle, low, high) on a common grid, as far as at least half of the runs have got.

    The band spans the middle half of the runs, or all of them if there are fewer than five.
    """
    known = [smoothed(curve, share) for curve in curves if len(curve.x)]
    if not known:
        return (np.empty(0),) * 4
    ends = sorted(float(curve.x[-1]) for curve in known)
    start, end = min(float(curve.x[0]) for curve in known), ends[(len(ends) - 1) // 2]
    longest = max(len(curve.x) for curve in known)
    grid = np.linspace(start, end, max(2, min(points, longest)))
    table = np.array([at(curve, grid) for curve in known])
    there = np.isfinite(table).sum(0)
    kept = 2 * there >= len(known)
    grid, table, there = grid[kept], table[:, kept], there[kept]
    of, centre = (iqm if middle == "iqm" else mean), np.empty(len(grid))
    for count in np.unique(there):  # runs that start later or end earlier leave gaps
        columns = table[:, there == count].T
        centre[there == count] = of([columns[np.isfinite(columns)].reshape(-1, count)])
    low, high = np.nanpercentile(table, (0.0, 100.0) if len(known) < 5 else (25.0, 75.0), axis=0)
    return grid, centre, low, high
