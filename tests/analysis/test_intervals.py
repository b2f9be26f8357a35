"""Intervals and plans, on numbers worked out by hand and on properties that hold for any numbers."""

import math

import numpy as np
import pytest

from surefoot.analysis import intervals as iv
from surefoot.analysis.statistics import iqm, mean


def tasks(*rows):
    return [np.array(row, np.float64) for row in rows]


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157), (30, 2.042272)]
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert iv.student_quantile(freedom) == pytest.approx(quantile, abs=1e-6)
    assert iv.student_quantile(1e5) == pytest.approx(iv.Z, abs=1e-4)


def test_resampling_stays_within_the_tasks():
    rng = np.random.default_rng(0)
    scores = tasks([1, 2, 3], [10, 20])
    picks = iv.resample(scores, rng, 50)
    assert [p.shape for p in picks] == [(50, 3), (50, 2)]
    seen = iv.bootstrap(scores, lambda drawn: drawn[0].max(-1) + drawn[1].min(-1), picks)
    assert set(np.unique(seen)) <= {11.0, 12.0, 13.0, 21.0, 22.0, 23.0}


def test_a_percentile_interval_of_known_values():
    low, high = iv.percentile_interval(np.arange(41.0))  # 2.5 % of 40 steps is one
    assert (low, high) == (pytest.approx(1.0), pytest.approx(39.0))


def test_the_widening_of_one_task_is_students_and_that_of_the_variance():
    """n = 3: t_2 / z · sqrt(3/2)."""
    assert iv.widening(tasks([1, 2, 4])) == pytest.approx(4.302653 / 1.959964 * math.sqrt(1.5), abs=1e-5)
    assert iv.widening(tasks(range(1000))) == pytest.approx(1.0, abs=0.005)


def test_the_widening_of_equal_tasks_has_their_degrees_of_freedom_together():
    """Four tasks of three runs with the same variance: 8 degrees of freedom; t_8 = 2.306004."""
    same = tasks(*[[1, 2, 3]] * 4)
    assert iv.widening(same) == pytest.approx(2.306004 / 1.959964 * math.sqrt(1.5), abs=1e-5)
    assert iv.widening(tasks([5, 5, 5])) == iv.widening(tasks([1, 2, 4]))  # no spread: only the numbers count


def test_the_interval_holds_its_estimate_and_can_be_repeated():
    scores = tasks([3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8])
    for statistic in (mean, iqm):
        found = iv.interval(scores, statistic)
        assert found.low < found.value < found.high
        assert found == iv.interval(scores, statistic)
    one = iv.interval(tasks([3.0]), mean)
    assert one.value == 3.0
    assert math.isnan(one.low)
    assert math.isnan(one.high)


def test_three_wins_out_of_three_settle_nothing_and_four_do():
    """Mann and Whitney, two-sided: 2/20 = 0.1 for three against three, 2/70 = 0.029 for four against four."""
    three = iv.improvement_interval(tasks([4, 5, 6]), tasks([1, 2, 3]))
    assert (three.value, three.high) == (1.0, 1.0)
    assert three.low < 0.5
    assert not iv.is_settled(three)
    assert iv.is_settled(iv.improvement_interval(tasks([5, 6, 7, 8]), tasks([1, 2, 3, 4])))
    assert iv.is_settled(iv.improvement_interval(tasks([1, 2, 3, 4]), tasks([5, 6, 7, 8])))


def test_the_interval_of_equals_is_symmetric():
    found = iv.improvement_interval(tasks([1, 2, 3, 4]), tasks([1, 2, 3, 4]))
    assert found.value == 0.5
    assert found.low == pytest.approx(1.0 - found.high)
    assert not iv.is_settled(found)
    assert math.isnan(iv.improvement_interval(tasks([1]), tasks([0, 2])).low)


def test_the_variance_at_one_half_is_mann_and_whitneys():
    """(n + k + 1) / (12·n·k)."""
    assert iv._improvement_variance(0.5, [(4, 6)]) == pytest.approx(11 / (12 * 24))


def test_seeds_needed():
    """All runs better (P = 1): three do not settle it and four do, as above."""
    assert iv.seeds_needed(1.0) == iv.seeds_needed(0.0) == 4
    assert iv.seeds_needed(0.5) is None
    assert iv.seeds_needed(0.7) > iv.seeds_needed(0.8) > iv.seeds_needed(0.9)
    assert iv.seeds_needed(0.8, tasks=5) < iv.seeds_needed(0.8)
    # Noether (1987): (1.96 + 0.84)² / (6 · 0.2²) = 33 per method for P = 0.7
    assert iv.seeds_needed(0.7) == pytest.approx(33, abs=2)


def test_a_share_has_a_width_even_if_no_run_or_every_run_is_above():
    """Wilson for 0 of 4: high = z²/(n + z²) = 3.8415/7.8415."""
    low, high = iv.share_interval(np.array([0.0, 1.0, 0.5]), 4)
    assert (low[0], high[0]) == (0.0, pytest.approx(0.4899, abs=1e-4))
    assert (low[1], high[1]) == (pytest.approx(0.5101, abs=1e-4), 1.0)
    assert low[2] + high[2] == pytest.approx(1.0)
