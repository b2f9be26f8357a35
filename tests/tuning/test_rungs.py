"""Successive halving, by hand on small numbers."""

import math

import numpy as np
import pytest

from surefoot.errors import UsageError
from surefoot.tuning.budget import Budget, Stopwatch, parse_budget
from surefoot.tuning.rungs import best, first_rung, lower_ends, make_rungs, round_cost, round_size, survivors


def test_rungs_end_with_all_steps_and_share_no_seed():
    rungs = make_rungs(900_000, 3, 200_000)
    assert [rung.steps for rung in rungs] == [100_000, 300_000, 900_000]
    assert [len(rung.seeds) for rung in rungs] == [3, 4, 5]
    seeds = [seed for rung in rungs for seed in rung.seeds]
    assert seeds == list(range(200_000, 200_012))
    assert make_rungs(10, 2, 0)[0].steps == 2  # rounded up


def test_a_third_goes_on():
    assert [survivors(9, rung) for rung in range(3)] == [9, 3, 1]
    assert [survivors(4, rung) for rung in range(3)] == [4, 2, 1]
    rungs = make_rungs(900, 3, 0)
    assert round_cost(9, rungs) == 9 * 3 * 100 + 3 * 4 * 300 + 5 * 900
    assert round_cost(5, rungs[1:]) == 5 * 4 * 300 + 2 * 5 * 900


def test_rounds_begin_on_every_rung_in_turn():
    """As in Hyperband, with three rungs and a factor of three: ⌈3/3·9⌉, ⌈3/2·3⌉ and ⌈3/1·1⌉ trials."""
    assert [first_rung(number) for number in range(5)] == [0, 1, 2, 0, 1]
    assert [round_size(first) for first in range(3)] == [9, 5, 3]


def test_the_lower_end_by_hand():
    """Variances 2 and 18 with median 10: (4·10 + 1·2)/5 = 8.4 and (4·10 + 18)/5 = 11.6; t₅ = 2.5706."""
    ends = lower_ends({0: [9.0, 11.0], 1: [7.0, 13.0]})
    assert ends[0] == pytest.approx(10 - 2.570582 * math.sqrt(8.4 / 2), rel=1e-5)
    assert ends[1] == pytest.approx(10 - 2.570582 * math.sqrt(11.6 / 2), rel=1e-5)


def test_equal_means_are_ranked_by_their_spread_and_equal_trials_by_their_number():
    assert best({0: [5.0, 15.0], 1: [9.0, 11.0], 2: [9.0, 11.0]}, 3) == [1, 2, 0]
    assert best({}, 3) == []
    assert lower_ends({3: [7.0]}) == {3: 7.0}


def test_sharing_the_spread_finds_the_better_trial_more_often_than_a_trial_of_its_own():
    """Nine trials of three seeds, one of them better by one standard deviation of a run's noise."""
    rng = np.random.default_rng(0)
    shared = alone = 0
    for _ in range(400):
        scores = {trial: list(rng.normal(1.0 if trial == 8 else 0.0, 1.0, 3)) for trial in range(9)}
        shared += best(scores, 1) == [8]
        own = {trial: np.mean(s) - 4.303 * np.std(s, ddof=1) / math.sqrt(3) for trial, s in scores.items()}
        alone += max(own, key=own.get) == 8
    assert shared > 1.3 * alone


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("30m", Budget(seconds=1800.0)),
        ("1h30m", Budget(seconds=5400.0)),
        (90, Budget(seconds=90.0)),
        ("200-trials", Budget(trials=200)),
        ("200 trials", Budget(trials=200)),
        ("200trials", Budget(trials=200)),
    ],
)
def test_budgets(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "soon", "30 minutes please", "0-trials", "1-trial", "-3m", "0s", "inf", "nan"])
def test_wrong_budgets(text):
    with pytest.raises(UsageError, match=r"200-trials|at least 2-trials"):
        parse_budget(text)


def test_the_time_is_kept_over_several_commands(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("surefoot.tuning.budget.perf_counter", lambda: now[0])
    first = Stopwatch(tmp_path / "time.json")
    now[0] = 107.0
    first.note()
    now[0] = 108.0
    first.note()  # too soon to be written
    now[0] = 500.0
    second = Stopwatch(tmp_path / "time.json")
    now[0] = 503.0
    assert second.seconds == 10.0
    (tmp_path / "time.json").write_text("{")
    assert Stopwatch(tmp_path / "time.json").seconds == 0.0
