"""Robust statistics of a few noisy returns: the interquartile mean and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]
RESAMPLES = 5_000
AT_ONCE = 2**20  # indices drawn at a time: 16 MiB with the values they select


def interquartile_mean(values: Values) -> float:
    """Mean of the middle half: the ⌊n/4⌋ smallest and the ⌊n/4⌋ largest values are left out."""
    ordered = np.sort(np.asarray(values, np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def bootstrap_interval(
    values: Values,
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda resampled: resampled.mean(1),
    *,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap: the range of `statistic` over samples drawn from `values` with replacement.

    `statistic` maps `[resamples, n]` to `[resamples]`, row by row; it is called with some of the rows at a time. The
    same values and seed give the same interval.
    """
    sample, rng = np.asarray(values, np.float64), np.random.default_rng(seed)
    rows = max(1, AT_ONCE // len(sample))
    found = [
        statistic(sample[rng.integers(len(sample), size=(min(rows, RESAMPLES - begin), len(sample)))])
        for begin in range(0, RESAMPLES, rows)
    ]
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(np.concatenate(found), [tail, 100.0 - tail])
    return float(low), float(high)
