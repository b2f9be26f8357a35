"""Learning curves over several envs at once: how fast each method gets how far, on normalised values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.analysis.bounds import Bounds
from surefoot.analysis.curves import Band, Curve, at, band_over, common_axis, thinned
from surefoot.analysis.groups import Group
from surefoot.analysis.plotting import SHORT, Library, Line, Panel, Plot, known_bounds
from surefoot.analysis.scores import normalise, normalised_bounds
from surefoot.analysis.statistics import Array, iqm

POINTS = 100  # an interval over several envs takes a millisecond


@dataclass(frozen=True)
class _Share:
    """The curves of a group, by env, on an axis that all envs have in common."""

    group: Group
    curves: Mapping[str, Sequence[Curve]]


def curves_together(
    groups: Sequence[Group], library: Library, plot: Plot, references: Mapping[str, Bounds]
) -> Panel | None:
    """The IQM over the runs on all envs that every group was run on, with its 95 % interval; None for fewer than two.

    A value is 0 and 1 at the references of its env or, if none are given, at the lowest and highest point of the env's
    curves. Where envs were trained for different numbers of steps, the axis is the share of them.
    """
    envs = [panel.env for panel in plot.panels if len(panel.lines) == len(groups)]
    if len(envs) < 2 or not groups:
        return None
    scale = {env: references.get(env) or _extent(plot, env) for env in envs}
    found = [_Share(group, {env: _curves(group, env, library, plot.metric) for env in envs}) for group in groups]
    ends = {env: max(curve.x[-1] for one in found for curve in one.curves[env]) for env in envs}
    same = min(ends.values()) >= SHORT * max(ends.values())
    lines = []
    for index, one in enumerate(found):
        curves = one.curves if same else {env: _stretched(one.curves[env], ends[env]) for env in envs}
        band = _band(one.group, curves, plot.metric, scale)
        if len(band.x):
            lines.append(Line(one.group.name, index, band))
    x_title = "environment steps" if same else "share of each env's steps"
    y_title = "normalised, IQM with 95 % interval"
    return Panel("all envs", tuple(lines), x_title, y_title, _about(scale)) if lines else None


def _about(scale: Mapping[str, Bounds]) -> str:
    """What 0 and 1 are. The first scores of a run lie far below its last, so the tables have other references."""
    ends = [f"{low:.4g} and {high:.4g} on {env}" for env, (low, high) in scale.items()]
    return f"0 and 1 are {', '.join(ends)}."


def _extent(plot: Plot, env: str) -> Bounds:
    values = np.concatenate([line.band.middle for panel in plot.panels if panel.env == env for line in panel.lines])
    return float(values.min()), float(values.max())


def _curves(group: Group, env: str, library: Library, metric: str) -> list[Curve]:
    curves = [library.curve(member, metric) for member in group.on(env)]
    return [curve for curve in curves if len(curve.x)]


def _stretched(curves: Sequence[Curve], end: float) -> list[Curve]:
    return [Curve(curve.x / end, curve.y) for curve in curves]


def _band(group: Group, curves: Mapping[str, Sequence[Curve]], metric: str, scale: Mapping[str, Bounds]) -> Band:
    x = thinned(common_axis([curve for found in curves.values() for curve in found], POINTS), POINTS)
    values: dict[str, Array] = {
        env: np.stack([at(curve, x) for curve in found], axis=-1) for env, found in curves.items()
    }
    bounds = {env: known_bounds(metric, group.on(env)) for env in values}
    spread = "interval" if min(map(len, curves.values())) > 1 else "none"
    return band_over(x, normalise(values, scale), iqm, spread, bounds=normalised_bounds(bounds, scale, values))
