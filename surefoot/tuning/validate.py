"""The check of a tune's result: the same steps, seeds that the search has never seen, beside the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from surefoot.analysis.bounds import UNBOUNDED, Bounds, bounds_of, that_hold
from surefoot.analysis.groups import as_typed
from surefoot.analysis.intervals import Estimate, interval
from surefoot.analysis.statistics import iqm
from surefoot.errors import SurefootError
from surefoot.sweep.folder import SweepFolder
from surefoot.sweep.plan import Point
from surefoot.tuning.journal import Trial
from surefoot.tuning.task import Task
from surefoot.tuning.trial_runner import TrialRunner


@dataclass(frozen=True)
class Checked:
    """The returns of every method on fresh seeds: `tuned`, `default`, and `preset NAME` if one is shipped."""

    scores: Mapping[str, Sequence[float]]
    estimates: Mapping[str, Estimate]  # IQM with its 95 % interval
    failed: str = ""  # why a run of the tuned settings failed

    @property
    def better(self) -> bool:
        """Whether the intervals of the tuned settings and of the default do not overlap, in the right order."""
        return not self.failed and self._order("default") == "better than"

    @property
    def worse(self) -> bool:
        return self._order("default") == "worse than"

    @property
    def others(self) -> dict[str, str]:
        """By shipped preset: how the tuned settings compare with it."""
        return {name: self._order(name) for name in self.estimates if name not in ("tuned", "default")}

    def _order(self, other: str) -> str:
        tuned, beside = self.estimates["tuned"], self.estimates[other]
        if tuned.low > beside.high:
            return "better than"
        return "worse than" if tuned.high < beside.low else "not distinguishable from"


def validate(task: Task, trial: Trial, folder: SweepFolder, runner: TrialRunner) -> Checked:
    """Train and evaluate the trial's settings, the default and the shipped preset with fresh seeds."""
    methods = task.validation_runs(trial.number, trial.values)
    # One seed of every method after the other: what is cut off by a kill is no method as a whole.
    ordered = [run for together in zip(*methods.values(), strict=True) for run in together]
    tracked = {run.name: run for run in runner.carry(folder, ordered)}
    scores: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for method, runs in methods.items():
        scores[method] = []
        for run in runs:
            one = tracked[run.name]
            if one.stage == "done" and one.eval_return is not None and isfinite(one.eval_return):
                scores[method].append(one.eval_return)
            else:
                failed.setdefault(method, f"seed {run.seed}: {one.error or 'it has no return'}")
    if "default" in failed:
        raise SurefootError(f"a run of the default failed, so there is nothing to compare with: {failed['default']}")
    scores = {method: found for method, found in scores.items() if len(found) > 1}
    estimates = {method: _estimate(found, methods[method][0].point) for method, found in scores.items()}
    return Checked(scores, estimates, failed.get("tuned", ""))


def _estimate(scores: Sequence[float], point: Point) -> Estimate:
    values = np.asarray(scores, np.float64)
    return interval([values], iqm, bounds=[_bounds(point, values)])


def _bounds(point: Point, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Bounds:
    settings = {name: as_typed(value) for name, value in point.written.items()}
    found = bounds_of(None, point.config.env.env, settings)
    return that_hold(found, values) if found != UNBOUNDED else found


@dataclass(frozen=True)
class Found:
    """What came out of a tune."""

    trials: int
    seconds: float
    trial: Trial | None  # the one that did best in the search; None: the default did
    checked: Checked | None
    importances: Mapping[str, float] = field(default_factory=dict)
