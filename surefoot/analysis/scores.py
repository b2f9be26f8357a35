"""One number per run: what a comparison compares. And when a run reached a threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.analysis.bounds import Bounds
from surefoot.analysis.curves import Curve, as_number, at
from surefoot.analysis.groups import Member
from surefoot.analysis.plotting import Library
from surefoot.analysis.statistics import Array, Tasks, median_time
from surefoot.errors import SurefootError, UsageError
from surefoot.text import one_line

TRAILING = 5  # rows whose average has to reach a threshold
LAST = 0.1  # share of the steps before the end, or before --at-step, that a score of a metric is averaged over


@dataclass(frozen=True)
class Scoring:
    """Which number: of the final evaluation (no metric), or a metric at a step (none: at the end of each run)."""

    metric: str | None = None
    at_step: int | None = None

    @property
    def described(self) -> str:
        if self.metric is None:
            return "mean return of the final evaluation"
        when = "at the end of each run" if self.at_step is None else f"at step {self.at_step:,}"
        return f"{self.metric} {when} (mean of the last tenth of the steps before it; higher counts as better)"

    def score(self, member: Member, library: Library) -> float:
        """UsageError says why there is none."""
        if self.metric is None:
            return _final_return(member)
        curve = library.curve(member, self.metric)
        if not len(curve.x):
            raise UsageError(f"it has no {self.metric}")
        if self.at_step is not None and self.at_step < curve.x[0]:
            raise UsageError(f"its first {self.metric} is at step {curve.x[0]:,.0f}, after step {self.at_step:,}")
        step = float(curve.x[-1] if self.at_step is None else self.at_step)
        if step > curve.x[-1]:
            steps = library.curve(member, "step").x  # the last row may lack the metric
            if steps[-1] < step:
                raise UsageError(f"it ends at step {steps[-1]:,.0f}, before step {step:,.0f}")
        return tail_mean(curve, step)


def tail_mean(curve: Curve, step: float) -> float:
    """Mean of the rows in the last tenth of the steps up to `step`; the interpolated value if there are none."""
    inside = (curve.x <= step) & (curve.x > (1.0 - LAST) * step)
    return float(curve.y[inside].mean() if inside.any() else at(curve, np.array([min(step, curve.x[-1])]))[0])


def _final_return(member: Member) -> float:
    try:
        evaluation = member.run.result.get("eval")
    except SurefootError:
        evaluation = None
    value = as_number(evaluation.get("mean_return")) if isinstance(evaluation, dict) else None
    if value is None:
        state = one_line(str(member.run.directory.read_status().get("state")))
        raise UsageError(f"it has no final evaluation (state: {state})")
    return value


@dataclass(frozen=True)
class Reached:
    """Steps until a threshold: of half of the runs (None: fewer got there), and how many got there at all."""

    threshold: float
    steps: float | None
    reached: int
    runs: int


def reach(curves: Sequence[Curve], threshold: float) -> Reached:
    """A run gets there with the first row at which the average of its last five rows is at least the threshold.

    One that ended before counts until then (`median_time`).
    """
    times, arrived = [], []
    for curve in curves:
        there = np.flatnonzero(_trailing(curve.y) >= threshold)
        arrived.append(bool(len(there)))
        times.append(float(curve.x[there[0]] if len(there) else curve.x[-1]))
    return Reached(threshold, median_time(times, arrived), sum(arrived), len(curves))


def _trailing(values: Array) -> Array:
    """Mean of each value and the four before it, or as many as there are."""
    first = [values[: i + 1].mean() for i in range(min(TRAILING - 1, len(values)))]
    rest = np.lib.stride_tricks.sliding_window_view(values, TRAILING).mean(-1) if len(values) >= TRAILING else []
    return np.concatenate([first, rest])


def usual_threshold(groups: Sequence[Sequence[Curve]]) -> float:
    """Nine tenths of the way from where runs begin to where the best group ends, to three digits.

    A steep curve of few rows ends above the average of any five of them, which would then be out of reach for the best.
    """
    curves = [curve for group in groups for curve in group]
    start = float(np.median([curve.y[0] for curve in curves]))
    best = max(float(np.median([_end(curve) for curve in group])) for group in groups if group)
    return float(f"{start + 0.9 * (best - start):.3g}")


def _end(curve: Curve) -> float:
    return min(tail_mean(curve, float(curve.x[-1])), float(_trailing(curve.y).max()))


def normalise(tasks: Mapping[str, Array], references: Mapping[str, tuple[float, float]]) -> Tasks:
    """(x − low) / (high − low) for each env: 0 and 1 are its references. All 1 where the two are equal."""
    found = []
    for env, scores in tasks.items():
        low, high = references[env]
        found.append((scores - low) / (high - low) if high > low else np.ones(scores.shape))
    return found


def normalised_bounds(
    bounds: Mapping[str, Bounds], references: Mapping[str, tuple[float, float]], envs: Iterable[str]
) -> list[Bounds]:
    """The limits of normalised scores, env by env."""
    pairs = normalise({env: np.array(bounds[env]) for env in envs}, references)
    return [(float(low), float(high)) for low, high in pairs]
