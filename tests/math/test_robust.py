"""The middle half, and how far chance moves a mean."""

import numpy as np
import pytest

from surefoot.math.robust import bootstrap_interval, interquartile_mean


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
    assert interquartile_mean(values) == pytest.approx(expected)


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
