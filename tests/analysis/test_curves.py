"""Curves of single runs and of several on a common axis."""

import numpy as np
import pytest

from surefoot.analysis import curves as cv
from surefoot.analysis.logs import Log
from surefoot.errors import UsageError
from surefoot.runs import Run
from tests.analysis.synthetic import make_run


def curve(x, y):
    return cv.Curve(np.array(x, np.float64), np.array(y, np.float64))


def test_rows_without_the_metric_are_passed_over(tmp_path):
    rows = [
        {"step": 10, "update": 1, "episode_return": None},
        {"step": 20, "update": 2, "episode_return": 5.0},
        {"step": 30, "update": 3, "kl": 1.0},
        {"step": 40, "update": 4, "episode_return": float("inf")},
        {"step": 50, "update": 5, "episode_return": 7},
    ]
    found = Log(Run(make_run(tmp_path / "a", rows=rows)))
    steps = found.curve("episode_return")
    assert (steps.x.tolist(), steps.y.tolist()) == ([20.0, 50.0], [5.0, 7.0])
    assert found.curve("episode_return", "updates").x.tolist() == [2.0, 5.0]
    assert found.curve("episode_return", "time").x.tolist() == [0.4, 1.0]
    assert found.names() == ["step", "seconds", "update", "episode_return", "kl"]


def test_a_metric_that_does_not_exist():
    with pytest.raises(UsageError, match=r"no run has a metric 'episode_retrun'; did you mean 'episode_return'\?"):
        cv.check_metric("episode_retrun", ["step", "episode_return"])


def test_values_between_rows_lie_on_a_line_and_there_are_none_outside():
    found = cv.at(curve([10, 20], [1, 3]), np.array([5.0, 10.0, 15.0, 20.0, 25.0]))
    assert found[1:4].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(found[[0, 4]]).all()


def test_the_common_axis_is_where_all_runs_have_rows():
    same = [curve([1, 2, 3], [0, 0, 0]), curve([1, 2, 3], [1, 1, 1])]
    assert cv.common_axis(same).tolist() == [1.0, 2.0, 3.0]
    longer = [curve([1, 2, 3], [0, 0, 0]), curve([2, 3, 4, 5], [1, 1, 1, 1])]
    assert cv.common_axis(longer).tolist() == [2.0, 3.0]
    other = [curve([0, 10], [0, 0]), curve([3, 7, 9], [1, 1, 1])]
    assert cv.common_axis(other, points=4).tolist() == [3.0, 5.0, 7.0, 9.0]
    assert not len(cv.common_axis([curve([0, 1], [0, 0]), curve([2, 3], [0, 0])]))
    assert not len(cv.common_axis([curve([], []), curve([2, 3], [0, 0])]))


def test_a_band_of_few_runs_is_their_range_and_of_more_an_interval():
    runs = [curve([0, 10], [i, 10 + i]) for i in range(3)]
    few = cv.band(runs)
    assert (few.spread, few.runs, few.x.tolist()) == ("range", 3, [0.0, 10.0])
    assert (few.low.tolist(), few.middle.tolist(), few.high.tolist()) == ([0, 10], [1, 11], [2, 12])
    many = cv.band([curve([0, 10], [i, 10 + i]) for i in range(8)])
    assert many.spread == "interval"
    assert many.middle.tolist() == [3.5, 13.5]  # the middle four of 0 to 7
    assert (many.low < many.middle).all()
    assert (many.high > many.middle).all()
    assert cv.band(runs[:1]).spread == cv.band(runs, spread="none").spread == "none"


def test_the_band_at_a_point_is_the_interval_of_the_scores_there():
    from surefoot.analysis.intervals import interval
    from surefoot.analysis.statistics import iqm

    values = np.random.default_rng(0).normal(size=9)
    found = cv.band([curve([0, 1], [value, value]) for value in values])
    alone = interval([values], iqm, resamples=cv.RESAMPLES)
    assert (found.low[0], found.high[0]) == (pytest.approx(alone.low), pytest.approx(alone.high))


def test_smoothing_averages_the_same_number_of_rows_on_both_sides():
    found = cv.smooth(curve([0, 1, 2, 3, 4], [0, 3, 6, 3, 0]), 3)
    assert found.y.tolist() == [0.0, 3.0, 4.0, 3.0, 0.0]
    assert cv.smooth(curve([0, 1, 2], [1, 2, 3]), 99).y.tolist() == [1.0, 2.0, 3.0]  # a line stays a line
    assert cv.smooth(curve([0, 1], [5, 6]), 1).y.tolist() == [5.0, 6.0]


def test_decimation_keeps_the_ends_and_every_peak():
    y = np.zeros(10_000)
    y[[1234, 7777]] = 50.0, -50.0
    long = curve(np.arange(10_000), y)
    kept = cv.decimate(long, 100)
    assert len(kept) <= 400
    assert {0, 1234, 7777, 9999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert cv.decimate(curve([0, 1, 2], [0, 1, 0]), 100).tolist() == [0, 1, 2]


def test_a_long_curve_has_no_more_points_than_a_picture_can_show():
    """And a single run keeps its spikes."""
    x, y = np.arange(100_000.0), np.zeros(100_000)
    y[[777, 50_001]] = -5.0, 9.0
    alone = cv.band([cv.Curve(x, y)])
    assert len(alone.x) <= cv.MOST_POINTS
    assert (alone.middle.min(), alone.middle.max(), alone.x[0], alone.x[-1]) == (-5.0, 9.0, 0.0, 99_999.0)
    several = cv.band([cv.Curve(x, y + i) for i in range(3)])
    assert len(several.x) <= cv.MOST_POINTS + 1
    assert (several.x[0], several.x[-1], several.middle[0]) == (0.0, 99_999.0, 1.0)
