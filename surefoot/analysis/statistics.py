"""One number for many scores: pure functions of NumPy arrays, the formula in each docstring.

Scores come as a sequence of arrays, one per task (an environment), whose last axis holds the runs (one per seed).
Tasks may have different numbers of runs. Axes before the last are batches: a bootstrap passes all resamples at once.
Mean, IQM, optimality gap, profile and probability of improvement have the definitions of `rliable`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Tasks: TypeAlias = Sequence[Array]  # per task: [..., runs]
Statistic: TypeAlias = Callable[[Tasks], Array]  # -> [...]


def mean(tasks: Tasks) -> Array:
    """1/M Σ_m (1/n_m Σ_i x_mi): every task counts the same, however many runs it has."""
    return np.asarray(_task_means(tasks).mean(-1))


def median(tasks: Tasks) -> Array:
    """Several tasks: the median over tasks of the mean over runs. One task: the median over its runs."""
    return np.asarray(np.median(_task_means(tasks) if len(tasks) > 1 else tasks[0], axis=-1))


def iqm(tasks: Tasks) -> Array:
    """Interquartile mean: the mean of all N scores without the ⌊N/4⌋ lowest and the ⌊N/4⌋ highest.

    Fewer than four scores: the mean. A single lucky or failed run hardly moves it, and it uses more of the data than
    the median.
    """
    pooled = np.sort(np.concatenate(list(tasks), axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return np.asarray(pooled[..., cut : pooled.shape[-1] - cut].mean(-1))


def optimality_gap(tasks: Tasks, target: float = 1.0) -> Array:
    """target − mean(min(x, target)): how far the runs fall short of the target; more than the target earns nothing."""
    pooled = np.concatenate(list(tasks), axis=-1)
    return np.asarray(target - np.minimum(pooled, target).mean(-1))


def profile(tasks: Tasks, thresholds: Array) -> Array:
    """Share of all runs with a score above τ, for every threshold τ: [..., thresholds]."""
    pooled = np.concatenate(list(tasks), axis=-1)
    return np.asarray((pooled[..., None] > thresholds).mean(-2))


def probability_of_improvement(better: Tasks, worse: Tasks) -> Array:
    """1/M Σ_m P(X_m > Y_m): the chance that a run of the first beats a run of the second on the same task.

    P(X > Y) = U / (n·k) with Mann and Whitney's U: the pairs that X wins, ties counting one half.
    """
    if len(better) != len(worse):
        raise ValueError(f"{len(better)} and {len(worse)} tasks; both sides need the same ones")
    return np.asarray(np.stack([_wins(x, y) for x, y in zip(better, worse, strict=True)], axis=-1).mean(-1))


def _wins(x: Array, y: Array) -> Array:
    difference = x[..., :, None] - y[..., None, :]
    return np.asarray(((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1)))


def _task_means(tasks: Tasks) -> Array:
    return np.stack([scores.mean(-1) for scores in tasks], axis=-1)


def median_time(times: Sequence[float], reached: Sequence[bool]) -> float | None:
    """When half of the runs have got there, though some were stopped before: Kaplan and Meier's estimate.

    `times`: when a run got there, or where it ended without (`reached` false). The share that is not there yet is
    S(t) = Π_{t_i ≤ t} (1 − d_i / r_i), with d_i arrivals at t_i among the r_i runs that were still on their way. The
    answer is the first t with S(t) ≤ 1/2; None if there is none.
    """
    on_the_way, share = len(times), 1.0
    for time in sorted(set(times)):
        here = [arrived for moment, arrived in zip(times, reached, strict=True) if moment == time]
        share *= 1.0 - sum(here) / on_the_way
        on_the_way -= len(here)
        if share <= 0.5 + 1e-12:
            return time
    return None
