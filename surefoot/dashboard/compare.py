"""Groups of runs side by side: how good each was at the end of training, and which beats which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from surefoot.analysis.bounds import UNBOUNDED, Bounds, bounds_of, that_hold
from surefoot.analysis.curves import Curve
from surefoot.analysis.groups import as_typed, newest_of_each
from surefoot.analysis.intervals import Estimate, improvement_interval, interval, is_settled, seeds_needed
from surefoot.analysis.scores import tail_mean
from surefoot.analysis.statistics import Array, Statistic, iqm, mean
from surefoot.dashboard.groups import short_labels
from surefoot.errors import SurefootError
from surefoot.runs import Run
from surefoot.runs.catalog import Entry

RESAMPLES = 2000


def compared(
    groups: Mapping[str, Sequence[Entry]], curves: Sequence[Sequence[Curve]], metric: str
) -> dict[str, object]:
    """Per group mean and IQM with 95 % intervals; per pair of groups on the same env the chance that the first wins."""
    counted = [_once(group, found) for group, found in zip(groups.values(), curves, strict=True)]
    scores = [np.array([tail_mean(curve, curve.x[-1]) for curve in found if len(curve.x)]) for found in counted]
    bounds = [_bounds(group, metric) for group in groups.values()]
    called = short_labels(groups)
    rows = [
        {
            "label": called[key],
            "key": key,
            "env": group[0].env,
            "runs": len(found),
            "scores": found[np.isfinite(found)].tolist(),
            "mean": _json(_estimate(found, mean, limits)),
            "iqm": _json(_estimate(found, iqm, limits)),
        }
        for (key, group), found, limits in zip(groups.items(), scores, bounds, strict=True)
    ]
    envs = [group[0].env for group in groups.values()]
    pairs = [
        _pair(a, b, scores[a], scores[b])
        for a, b in combinations(range(len(groups)), 2)
        if envs[a] == envs[b] and len(scores[a]) and len(scores[b])
    ]
    return {"groups": rows, "pairs": pairs}


def _once(group: Sequence[Entry], curves: Sequence[Curve]) -> list[Curve]:
    """The curves of the runs that count."""
    found = zip(group, curves, strict=True)
    counted = newest_of_each(found, lambda one: (one[0].env, one[0].seed), lambda one: one[0].created)
    return [curve for _, curve in counted]


def _bounds(group: Sequence[Entry], metric: str) -> Bounds:
    """The limits of the metric; runs of a group have the same settings, so one of them is enough."""
    try:
        group[0].directory.refuse_links()
        config = Run(group[0].directory).config
    except (SurefootError, OSError, ValueError):
        return UNBOUNDED
    return bounds_of(metric, group[0].env or "", {name: as_typed(value) for name, value in config.items()})


def _estimate(scores: Array, statistic: Statistic, bounds: Bounds) -> Estimate:
    if not len(scores):
        return Estimate(math.nan)
    return interval([scores], statistic, resamples=RESAMPLES, bounds=[that_hold(bounds, scores)])


def _pair(a: int, b: int, first: Array, second: Array) -> dict[str, object]:
    found = improvement_interval([first], [second])
    settled = is_settled(found)
    needed = None if settled else seeds_needed(found.value)
    return {"first": a, "second": b, "improvement": _json(found), "settled": settled, "seeds_needed": needed}


def _json(estimate: Estimate) -> list[float | None]:
    """[value, low, high]; None for what is not known."""
    return [x if math.isfinite(x) else None for x in (estimate.value, estimate.low, estimate.high)]
