"""Turns runs into the curves of a picture: its panels, groups and lines, and notes about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from surefoot.analysis.bounds import Bounds, bounds_of, hull
from surefoot.analysis.curves import (
    Axis,
    Band,
    Curve,
    band,
    check_metric,
    smooth,
)
from surefoot.analysis.groups import Group, Member, group_runs
from surefoot.analysis.logs import Log
from surefoot.analysis.statistics import Statistic, iqm, mean, median
from surefoot.errors import SurefootError, UsageError
from surefoot.runs import Run
from surefoot.text import one_line

LINES: dict[str, Statistic] = {"iqm": iqm, "mean": mean, "median": median}
SHORT = 0.9  # a run that ends before this share of the longest is worth a note


@dataclass(frozen=True)
class Line:
    """A group's curve in a panel. `index` gives it the same look in every panel."""

    name: str
    index: int
    band: Band


@dataclass(frozen=True)
class Panel:
    env: str
    lines: tuple[Line, ...]
    x_title: str = ""  # where they are not those of the plot
    y_title: str = ""
    about: str = ""  # what its numbers are, in a sentence


@dataclass(frozen=True)
class Plot:
    metric: str
    axis: Axis
    panels: tuple[Panel, ...]
    line: str  # iqm, mean or median
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """What the lines and bands are, in words."""
        bands = [line.band for panel in self.panels for line in panel.lines]
        kinds = {found.spread for found in bands}
        if all(found.runs == 1 for found in bands):
            return "one run each"
        said = f"line: {'IQM' if self.line == 'iqm' else self.line} over runs"
        words = {"interval": "95 % interval", "range": "lowest to highest run"}
        named = [words[kind] for kind in ("interval", "range") if kind in kinds]
        if len(named) == 2:
            return f"{said}; band: 95 % interval (lowest to highest where there are fewer than five runs)"
        return f"{said}; band: {named[0]}" if named else said


@dataclass
class Library:
    """The logs of the runs, each read once; what cannot be read becomes a note."""

    logs: dict[int, Log | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: list[Run] = field(default_factory=list)

    def of(self, member: Member) -> Log | None:
        key = id(member.run)
        if key not in self.logs:
            try:
                self.logs[key] = Log(member.run)
            except (SurefootError, OSError) as error:
                self.logs[key] = None
                self.unread.append(member.run)
                self.notes.append(f"{one_line(str(member.run.path))} is left out of the curves: {one_line(str(error))}")
        return self.logs[key]

    def curve(self, member: Member, metric: str, axis: Axis = "steps") -> Curve:
        """Empty for a run that cannot be read, or that has no such metric."""
        log = self.of(member)
        return Curve(np.empty(0), np.empty(0)) if log is None else log.curve(metric, axis)

    def check_metric(self, metric: str, members: Sequence[Member]) -> None:
        """UsageError if none of the runs has it."""
        logs = [log for log in map(self.of, members) if log is not None]
        if not any(np.isfinite(log.column(metric)).any() for log in logs):
            if not logs and self.notes:
                raise UsageError("\n".join(["none of these runs can be read", *self.notes]))
            check_metric(metric, list(dict.fromkeys(name for log in logs for name in log.names())))


@dataclass(frozen=True)
class Style:
    """How curves are drawn: the axis, the line of a group, its band, and rows to average over."""

    axis: Axis = "steps"
    line: str = "iqm"
    spread: str = "auto"
    smoothing: int = 1


def plot_runs(runs: Sequence[Run], metric: str = "episode_return", style: Style | None = None) -> Plot:
    """The curves of these runs: a panel per env, a line per group."""
    groups, notes = group_runs(runs)
    if not groups:
        raise UsageError("\n".join(["none of these runs can be read", *notes]))
    return plot_groups(groups, Library(notes=notes), metric, style or Style())


def plot_groups(groups: Sequence[Group], library: Library, metric: str, style: Style) -> Plot:
    every = [member for group in groups for member in group.members]
    library.check_metric(metric, every)
    panels, notes = [], []
    for env in dict.fromkeys(member.env for member in every):
        lines = []
        for index, group in enumerate(groups):
            curves, said = _curves(group, env, library, metric, style)
            notes += said
            bounds = known_bounds(metric, group.on(env))
            found = band(curves, LINES[style.line], style.spread, bounds=bounds) if curves else None
            if found is not None and len(found.x):
                lines.append(Line(group.name, index, found))
            elif curves:
                notes.append(f"{group.name}: its runs on {env} have no {style.axis} in common; nothing is drawn")
        panels.append(Panel(env, tuple(lines)))
    return Plot(metric, style.axis, tuple(panels), style.line, (*library.notes, *notes))


def _curves(group: Group, env: str, library: Library, metric: str, style: Style) -> tuple[list[Curve], list[str]]:
    found: list[Curve] = []
    notes: list[str] = []
    for member in group.on(env):
        curve = library.curve(member, metric, style.axis)
        if len(curve.x):
            found.append(smooth(curve, style.smoothing))
        elif member.run not in library.unread:
            why = f"it has no {metric}" if len(library.curve(member, "step").x) else _nothing(member.run)
            notes.append(f"{one_line(str(member.run.path))} is left out of the curves: {why}")
    ends = [curve.x[-1] for curve in found]
    if style.axis != "time" and ends and min(ends) < SHORT * max(ends):
        shorter = sum(end < SHORT * max(ends) for end in ends)
        notes.append(
            f"{group.name} on {env}: {shorter} of {len(ends)} runs end before the others; the curve goes to "
            f"{min(ends):,.0f} {style.axis} of {max(ends):,.0f}, where all of them have rows"
        )
    return found, notes


def known_bounds(metric: str | None, members: Sequence[Member]) -> Bounds:
    """The limits of a metric (None: the return of the final evaluation) in all of these runs."""
    return hull([bounds_of(metric, member.env, member.settings) for member in members])


def _nothing(run: Run) -> str:
    return "it has no rows yet" if run.path.is_dir() else "it is gone"
