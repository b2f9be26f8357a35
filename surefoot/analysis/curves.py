"""Learning curves: a metric of many runs on a common axis.

Rows of different runs need not lie at the same steps. Between two rows of a run, its value is interpolated linearly.
Nothing is extrapolated before its first row or after its last, so the curve of several runs covers the part of the axis
where all of them have rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.analysis.bounds import UNBOUNDED, Bounds, that_hold
from surefoot.analysis.intervals import bootstrap, limits, percentile_interval, resample, widening
from surefoot.analysis.statistics import Array, Statistic, Tasks, iqm
from surefoot.errors import UsageError, did_you_mean
from surefoot.runs import Run

Axis = Literal["steps", "updates", "time"]
AXES: dict[Axis, tuple[str, str]] = {  # the column, and its name on a picture
    "steps": ("step", "environment steps"),
    "updates": ("update", "updates"),
    "time": ("seconds", "wall time in seconds"),
}
POINTS = 200  # for a curve over runs whose rows differ
MOST_POINTS = 1_000  # for any curve that is drawn: a picture is hardly more pixels wide
RESAMPLES = 1_000


@dataclass(frozen=True)
class Curve:
    """A metric of one run: x ascending, both finite."""

    x: Array
    y: Array


def curve_of(x: Array, y: Array) -> Curve:
    """A curve from columns of the same rows.

    Rows without either value are passed over. If several rows have the same x, as where a run was resumed, the last
    one counts.
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    last = np.append(x[1:] != x[:-1], True)[: len(x)]
    return Curve(x[last], y[last])


@dataclass(frozen=True)
class Band:
    """A metric of several runs: the middle of them, and how far they or chance go at every x."""

    x: Array
    middle: Array
    low: Array
    high: Array
    runs: int
    spread: Literal["interval", "range", "none"]


Row = Mapping[str, object]


def read_rows(run: Run) -> list[dict[str, object]]:
    """The rows of the metrics, each with the wall times of its step."""
    timings: dict[float | None, Row] = {as_number(row.get("step")): row for row in run.timings}
    return [{**timings.get(as_number(row.get("step")), {}), **row} for row in run.metrics]


def as_number(value: object) -> float | None:
    """A finite number as a float; None for anything else that a file may hold."""
    try:
        found = float(value) if isinstance(value, (int, float)) else None
    except OverflowError:  # an integer of hundreds of digits
        return None
    return found if found is not None and isfinite(found) else None


def metric_names(rows: Iterable[Row]) -> list[str]:
    """Everything that is a number in some row, in the order in which it appears."""
    return list(dict.fromkeys(name for row in rows for name, value in row.items() if as_number(value) is not None))


def check_metric(metric: str, known: Sequence[str]) -> None:
    if metric not in known:
        near = did_you_mean(metric, known)
        raise UsageError(f"no run has a metric '{metric}'{near} (`surefoot plot --list-metrics` shows them)")


def smooth(curve: Curve, rows: int) -> Curve:
    """The average over this many neighbouring rows, half of them on each side; fewer towards the ends."""
    if rows <= 1 or not len(curve.y):
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.y)])
    index = np.arange(len(curve.y))
    reach = np.minimum(np.minimum(rows // 2, index), len(index) - 1 - index)  # the same on both sides: no shift
    return Curve(curve.x, (sums[index + reach + 1] - sums[index - reach]) / (2 * reach + 1))


def at(curve: Curve, x: Array) -> Array:
    """Values at these places; NaN outside of the curve."""
    if not len(curve.x):
        return np.full(len(x), np.nan)
    return np.asarray(np.interp(x, curve.x, curve.y, left=np.nan, right=np.nan), np.float64)


def common_axis(curves: Sequence[Curve], points: int = POINTS) -> Array:
    """Where all the curves have values: their own x if they share it, evenly spaced ones if not. Empty: nowhere."""
    if not curves or not all(len(curve.x) for curve in curves):
        return np.empty(0)
    low, high = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    inside = [curve.x[(curve.x >= low) & (curve.x <= high)] for curve in curves]
    if all(len(x) == len(inside[0]) and np.array_equal(x, inside[0]) for x in inside):
        return thinned(inside[0], MOST_POINTS)
    return np.asarray(np.linspace(low, high, points) if low < high else np.full(int(low == high), low))


def thinned(x: Array, most: int) -> Array:
    """Every nth value and the last one, about `most` in all; all of them if they are no more."""
    every = -(-len(x) // most)
    return x if every <= 1 else np.append(x[:-1:every], x[-1])


def band(
    curves: Sequence[Curve],
    statistic: Statistic = iqm,
    spread: str = "auto",
    seed: int = 0,
    bounds: Bounds = UNBOUNDED,
) -> Band:
    """The statistic over runs at every x, with its 95 % interval or the range of the runs.

    `spread`: interval, range, none, or auto: the interval for five runs and more, and the range for fewer.
    `bounds`: the limits of the values, as far as they are known.
    """
    x = curves[0].x[decimate(curves[0], MOST_POINTS // 4)] if len(curves) == 1 else common_axis(curves)
    values = np.stack([at(curve, x) for curve in curves], axis=-1)  # [points, runs]
    if spread == "auto":
        spread = "range" if len(curves) < 5 else "interval"
    return band_over(x, [values], statistic, spread, seed, [bounds])


def band_over(
    x: Array, tasks: Tasks, statistic: Statistic, spread: str, seed: int = 0, bounds: Sequence[Bounds] | None = None
) -> Band:
    """The statistic over the runs of several tasks, [points, runs] each. `spread`: interval, range or none."""
    middle, runs = statistic(tasks), sum(values.shape[-1] for values in tasks)
    if runs < 2 or spread == "none" or not len(x):
        return Band(x, middle, middle, middle, runs, "none")
    if spread == "range":
        every = np.concatenate(list(tasks), axis=-1)
        return Band(x, middle, every.min(-1), every.max(-1), runs, "range")
    low, high = _intervals(tasks, middle, statistic, seed)
    known = [that_hold(found, values) for found, values in zip(bounds or [UNBOUNDED] * len(tasks), tasks, strict=True)]
    least, most = limits(tasks, statistic, known)
    low, high = np.minimum(np.maximum(low, least), middle), np.maximum(np.minimum(high, most), middle)
    return Band(x, middle, low, high, runs, "interval")


def _intervals(tasks: Tasks, middle: Array, statistic: Statistic, seed: int) -> tuple[Array, Array]:
    """Like `intervals.interval`, at every point, with the same resamples everywhere."""
    points = [[values[i] for values in tasks] for i in range(len(middle))]
    picks = resample(points[0], np.random.default_rng(seed), RESAMPLES)
    edges = np.array([percentile_interval(bootstrap(point, statistic, picks)) for point in points])  # [points, 2]
    # For a single task the factor depends on the number of runs alone.
    factors = widening(points[0]) if len(tasks) == 1 else np.array([widening(point) for point in points])
    low, high = (middle + factors * (edge - middle) for edge in edges.T)
    return low, high


def decimate(curve: Curve, buckets: int) -> NDArray[np.int64]:
    """Which points to draw so that a long curve looks the same: of every bucket the first, lowest, highest and last.

    At most 4·buckets indices, ascending; all of them for a curve that is no longer than that.
    """
    count = len(curve.y)
    if count <= 4 * buckets:
        return np.arange(count)
    chosen: set[int] = set()
    for part in np.array_split(np.arange(count), buckets):
        y = curve.y[part]
        chosen.update((int(part[0]), int(part[y.argmin()]), int(part[y.argmax()]), int(part[-1])))
    return np.array(sorted(chosen), np.int64)
