"""Aggregates of scores, on numbers that were worked out by hand."""

import numpy as np
import pytest

from surefoot.analysis import statistics as st


def tasks(*rows):
    return [np.array(row, np.float64) for row in rows]


def test_the_mean_counts_every_task_the_same():
    """Task means 2 and 10; pooled over runs it would be 22/5 = 4.4… of five runs: (1+2+3+8+12)/5 = 5.2."""
    assert st.mean(tasks([1, 2, 3], [8, 12])) == 6.0


def test_the_median_is_over_task_means_or_over_the_runs_of_one_task():
    assert st.median(tasks([0, 2], [3, 5], [100, 300])) == 4.0
    assert st.median(tasks([1, 2, 30])) == 2.0


def test_the_iqm_drops_a_quarter_at_each_end():
    """Eight scores 0, 1, 2, 3, 4, 5, 6, 1000: without two at each end, (2+3+4+5)/4."""
    assert st.iqm(tasks([1000, 0, 5, 2], [3, 1, 6, 4])) == 3.5
    assert st.iqm(tasks([1, 2, 9])) == 4.0  # 3/4 of a run is no run
    assert st.iqm(tasks([9, 1, 2, 3, 100])) == pytest.approx(14 / 3)  # ⌊5/4⌋ = 1 at each end


def test_the_optimality_gap_gives_nothing_for_more_than_the_target():
    """min(x, 1): 0.5, 1, 1, 0 → mean 0.625."""
    assert st.optimality_gap(tasks([0.5, 2.0], [1.0, 0.0])) == pytest.approx(0.375)
    assert st.optimality_gap(tasks([3.0, 5.0]), target=4.0) == pytest.approx(0.5)


def test_the_profile_is_the_share_of_runs_above_each_threshold():
    found = st.profile(tasks([1, 2], [3, 4]), np.array([0.0, 2.0, 3.5, 4.0]))
    assert found.tolist() == [1.0, 0.5, 0.25, 0.0]  # strictly above


def test_the_probability_of_improvement_counts_pairs_and_half_of_the_ties():
    """[2, 4] against [1, 2, 3]: 2 beats 1, ties 2; 4 beats all: 4.5 of 6 pairs. Second task: 0 of 1."""
    assert st.probability_of_improvement(tasks([2, 4]), tasks([1, 2, 3])) == pytest.approx(0.75)
    assert st.probability_of_improvement(tasks([2, 4], [0]), tasks([1, 2, 3], [5])) == pytest.approx(0.375)
    same = tasks([1, 2, 3])
    assert st.probability_of_improvement(same, same) == 0.5
    with pytest.raises(ValueError, match="2 and 1 tasks"):
        st.probability_of_improvement(tasks([1], [2]), tasks([1]))


def test_a_batch_of_resamples_is_computed_row_by_row():
    rng = np.random.default_rng(0)
    batch = [rng.normal(size=(7, 5)), rng.normal(size=(7, 4))]
    for statistic in (st.mean, st.median, st.iqm, st.optimality_gap):
        alone = [float(statistic([task[i] for task in batch])) for i in range(7)]
        assert statistic(batch) == pytest.approx(alone)


def test_half_of_the_runs_are_there():
    assert st.median_time([10, 30, 20, 40], [True] * 4) == 20
    assert st.median_time([10, 20, 30], [True] * 3) == 20
    assert st.median_time([10, 50, 50], [True, False, False]) is None
    assert st.median_time([], []) is None


def test_a_run_that_was_stopped_early_counts_as_long_as_it_was_there():
    """One of four leaves at 5 (censored): of three, arrivals at 10 and 20 leave 2/3, then 1/3 ≤ 1/2 → 20.

    Were it counted as one that never arrives, 10 and 20 would leave 3/4, 1/2 → also 20; with two such, three arrivals
    of five: at 10, 20, 30 Kaplan-Meier leaves 2/3, 1/3 → 20, but the naive count 4/5, 3/5, 2/5 → 30.
    """
    assert st.median_time([5, 10, 20, 30], [False, True, True, True]) == 20
    assert st.median_time([5, 5, 10, 20, 30], [False, False, True, True, True]) == 20
