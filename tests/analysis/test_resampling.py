"""The middle half, and how far chance moves a mean."""

import tracemalloc

import numpy as np
import pytest

from surefoot.analysis import resampling
from surefoot.analysis.resampling import bootstrap_interval
from surefoot.analysis.statistics import iqm


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 2.0, 3.0], 2.0),  # nothing to leave out
        ([-100.0, 2.0, 4.0, 900.0], 3.0),
        ([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 4.5),  # 3, 4, 5, 6
        ([0.0, 0.0, 1.0, 2.0, 3.0, 50.0, 60.0], 56.0 / 5),  # one of seven at each end
    ],
)
def test_interquartile_mean_by_hand(values, expected):
    assert iqm([np.array(values)]) == pytest.approx(expected)


def test_a_constant_has_no_spread():
    assert bootstrap_interval([3.0] * 10) == (3.0, 3.0)


def test_the_interval_is_that_of_the_normal_theory_where_it_holds():
    values = np.random.default_rng(0).normal(10.0, 2.0, 400)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        low, high = bootstrap_interval(random.exponential(1.0, 60), seed=trial)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 300 <= 0.98


def test_the_interval_repeats_and_takes_other_statistics():
    values = [1.0, 2.0, 3.0, 100.0]
    assert bootstrap_interval(values) == bootstrap_interval(values)
    low, high = bootstrap_interval(values, lambda resampled: np.median(resampled, 1))
    assert (low, high) == (1.0, 100.0)
    narrow = bootstrap_interval(values, level=0.5)
    wide = bootstrap_interval(values)
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


@pytest.mark.parametrize("size", [1, 3, 100, 257, 3001])
def test_the_interval_does_not_depend_on_how_much_is_drawn_at_once(size, monkeypatch):
    values = np.random.default_rng(size).normal(0.0, 100.0, size)
    in_parts = bootstrap_interval(values, seed=3)
    monkeypatch.setattr(resampling, "AT_ONCE", resampling.RESAMPLES * size)
    whole = bootstrap_interval(values, seed=3)
    monkeypatch.setattr(resampling, "AT_ONCE", 7 * size + 1)
    assert in_parts == whole == bootstrap_interval(values, seed=3)


def test_many_episodes_take_no_more_memory_than_few():
    """All resamples of 20,000 returns at once would be 1.6 GB."""
    tracemalloc.start()
    try:
        low, high = bootstrap_interval(np.arange(20_000.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert low < 9999.5 < high
    assert peak < 64 * 2**20
