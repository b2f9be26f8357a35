"""The statistics agree with `rliable` and scipy to 1e-6 on the same scores and the same resamples.

`reference.json` holds their numbers; `benchmarks/check_statistics.py` made it.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from surefoot.analysis import intervals as iv
from surefoot.analysis import statistics as st

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))
STATISTICS = {"mean": st.mean, "median": st.median, "iqm": st.iqm, "optimality_gap": st.optimality_gap}
AGGREGATES, IMPROVEMENTS = REFERENCE["aggregates"], REFERENCE["improvements"]


def by_task(scores):
    return list(np.array(scores).T)


def their_picks(*shapes):
    """The resamples that rliable drew: for each array one [resamples, runs] per task."""
    rng = np.random.RandomState(REFERENCE["seed"])
    drawn = [[rng.choice(shape[0], shape, replace=True) for shape in shapes] for _ in range(REFERENCE["resamples"])]
    return [list(np.moveaxis(np.array(list(chosen)), 2, 0)) for chosen in zip(*drawn, strict=True)]


@pytest.mark.parametrize("case", AGGREGATES)
@pytest.mark.parametrize("name", STATISTICS)
def test_an_aggregate_and_its_percentile_interval(case, name):
    known, scores = AGGREGATES[case], by_task(AGGREGATES[case]["scores"])
    statistic = STATISTICS[name]
    if name == "median" and len(scores) == 1:
        assert statistic(scores) == pytest.approx(np.median(scores[0]))  # rliable takes the mean of a single task
        return
    assert statistic(scores) == pytest.approx(known["value"][name], abs=1e-6)
    (picks,) = their_picks(np.shape(known["scores"]))
    low, high = iv.percentile_interval(iv.bootstrap(scores, statistic, picks))
    assert [[low], [high]] == [pytest.approx(edge, abs=1e-6) for edge in known["interval"][name]]


@pytest.mark.parametrize("case", AGGREGATES)
def test_a_profile_and_its_band(case):
    known, scores = AGGREGATES[case], by_task(AGGREGATES[case]["scores"])
    taus = np.array(known["taus"])
    assert st.profile(scores, taus) == pytest.approx(np.array(known["profile"]), abs=1e-6)
    (picks,) = their_picks(np.shape(known["scores"]))
    low, high = iv.percentile_interval(iv.bootstrap(scores, lambda drawn: st.profile(drawn, taus), picks))
    assert np.array([low, high]) == pytest.approx(np.array(known["profile_interval"]), abs=1e-6)
    assert st.iqm(scores) == pytest.approx(known["scipy_iqm"], abs=1e-6)


@pytest.mark.parametrize("case", IMPROVEMENTS)
def test_the_probability_of_improvement_and_its_percentile_interval(case):
    known = IMPROVEMENTS[case]
    x, y = by_task(known["x"]), by_task(known["y"])
    assert st.probability_of_improvement(x, y) == pytest.approx(known["value"], abs=1e-6)
    pairs = [len(a) * len(b) for a, b in zip(x, y, strict=True)]
    assert np.mean(np.array(known["scipy_u"]) / pairs) == pytest.approx(known["value"], abs=1e-6)
    first, second = their_picks(np.shape(known["x"]), np.shape(known["y"]))
    drawn = [[a[p] for a, p in zip(side, picks, strict=True)] for side, picks in ((x, first), (y, second))]
    low, high = iv.percentile_interval(st.probability_of_improvement(*drawn))
    assert [[low], [high]] == [pytest.approx(edge, abs=1e-6) for edge in known["interval"]]


def test_the_score_interval_at_one_half_is_scipys_mann_whitney_test():
    """Per task; ties are left out, for scipy corrects the variance for them."""
    known = IMPROVEMENTS["normal 5x4 and 8x4"]
    for x, y, p in zip(by_task(known["x"]), by_task(known["y"]), known["scipy_p"], strict=True):
        pairs = [(len(x), len(y))]
        away = abs(float(st.probability_of_improvement([x], [y])) - 0.5) - iv._half_step(pairs)
        assert math.erfc(away / math.sqrt(2.0 * iv._improvement_variance(0.5, pairs))) == pytest.approx(p, abs=1e-6)
        assert iv.is_settled(iv.improvement_interval([x], [y])) == (p < 0.05)


def test_students_quantiles():
    for freedom, quantile in REFERENCE["student_quantiles"]:
        assert iv.student_quantile(freedom) == pytest.approx(quantile, abs=1e-6)
