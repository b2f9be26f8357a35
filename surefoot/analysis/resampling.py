"""The bootstrap interval of one list of numbers, however long: the returns of an evaluation, say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.analysis.intervals import RESAMPLES, percentile_interval

Values = Sequence[float] | NDArray[np.float64]
AT_ONCE = 2**20  # indices drawn at a time: 16 MiB with the values they select


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
    low, high = percentile_interval(np.concatenate(found), level)
    return float(low), float(high)
