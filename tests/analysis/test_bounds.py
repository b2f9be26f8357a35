"""No interval reaches past what is known to be the limit, and none is invented."""

from math import inf

import gymnasium as gym
import numpy as np
import pytest

from surefoot.analysis.bounds import ENVS, UNBOUNDED, bounds_of, hull, that_hold
from surefoot.analysis.comparison import compare
from surefoot.analysis.intervals import interval
from surefoot.analysis.plotting import plot_runs
from surefoot.analysis.statistics import iqm, mean, median, optimality_gap
from surefoot.runs import Run
from tests.analysis.synthetic import make_family, make_run

NEAR_500 = [460.0, 500.0, 489.0]


def runs(*families):
    return [Run(folder) for family in families for folder in family]


@pytest.mark.parametrize("env", ENVS)
def test_the_limits_are_those_of_gymnasium(env):
    """The time limit is the registered one, and no episode pays less or more."""
    spec = gym.registry.get(env)
    if spec is None:
        pytest.skip(f"this Gymnasium has no {env}")
    assert spec.max_episode_steps == ENVS[env].limit
    if env.startswith("InvertedPendulum"):
        pytest.importorskip("mujoco")
    if env in ("CartPole-v0", "InvertedPendulum-v4"):
        return  # making one warns that it is old; its rewards are those of the newer version
    low, high = bounds_of(None, env, {})
    with gym.make(env) as made:
        for seed in range(3):
            made.reset(seed=seed)
            made.action_space.seed(seed)
            total, over = 0.0, False
            while not over:
                _, reward, terminated, truncated, _ = made.step(made.action_space.sample())
                total, over = total + float(reward), terminated or truncated
            assert low <= total <= high


def test_the_limits_of_returns_follow_the_settings():
    assert bounds_of(None, "CartPole-v1", {"max_episode_steps": "none", "wrappers": ""}) == (0.0, 500.0)
    assert bounds_of("episode_return", "CartPole-v1", {"max_episode_steps": "200"}) == (0.0, 200.0)
    assert bounds_of("eval_return", "Acrobot-v1", {}) == (-500.0, 0.0)
    for changed in ({"env_kwargs": "{'sutton_barto_reward': True}"}, {"wrappers": "mine.py:W"}, {"eval_env": "X-v0"}):
        assert bounds_of(None, "CartPole-v1", changed) == UNBOUNDED
    assert bounds_of(None, "HalfCheetah-v5", {}) == UNBOUNDED
    assert bounds_of("kl", "HalfCheetah-v5", {}) == (0.0, inf)
    assert bounds_of("explained_variance", "HalfCheetah-v5", {}) == (-inf, 1.0)
    assert hull([(0.0, 200.0), (0.0, 500.0)]) == (0.0, 500.0)
    assert hull([]) == UNBOUNDED


def test_limits_that_a_run_has_exceeded_are_not_believed():
    assert that_hold((0.0, 500.0), np.array([3.0, 501.0])) == UNBOUNDED
    assert that_hold((0.0, inf), np.array([-9e-8, 0.01, np.nan])) == (0.0, inf)  # rounding


@pytest.mark.parametrize("statistic", [mean, median, iqm])
def test_an_interval_is_cut_at_the_limits_and_nowhere_else(statistic):
    scores = [np.array(NEAR_500)]
    free, cut = (interval(scores, statistic, bounds=bounds) for bounds in (None, [(0.0, 500.0)]))
    assert free.high > 500.0
    assert (cut.value, cut.low, cut.high) == (free.value, free.low, 500.0)
    assert interval(scores, statistic, bounds=[UNBOUNDED]) == free


def test_over_several_tasks_the_limit_is_that_of_the_statistic():
    """Two tasks, of which one has a limit: a mean over both has none; if both have, it is their mean."""
    scores = [np.array([0.0, 1.0, 1.0]), np.array([2.0, 3.0, 1.0])]
    assert interval(scores, mean, bounds=[(0.0, 1.0), UNBOUNDED]) == interval(scores, mean)
    assert interval(scores, mean, bounds=[(0.0, 1.0), (0.0, 3.0)]).high == 2.0
    assert interval(scores, optimality_gap).low == 0.0  # no gap is negative, whatever the scores


def test_a_cut_interval_holds_the_truth_as_often_as_one_that_is_not():
    rng = np.random.default_rng(0)
    held = {"free": 0, "cut": 0}
    for trial in range(100):
        scores = [500.0 * rng.beta(4.0, 0.5, 4)]  # most near 500, some far below
        for name, bounds in (("free", None), ("cut", [(0.0, 500.0)])):
            found = interval(scores, mean, trial, 300, bounds)
            held[name] += found.low <= 500.0 * 4.0 / 4.5 <= found.high
    assert held["cut"] == held["free"] > 50


def test_a_comparison_on_cartpole_stays_within_500(tmp_path):
    found = compare(runs(make_family(tmp_path, "ppo", NEAR_500), make_family(tmp_path, "vpg", [2.0, 20.0, 10.0])))
    best, worst = found.tables[0].summaries
    assert max(best.mean.high, best.iqm.high, best.median.high) == 500.0
    assert min(worst.mean.low, worst.iqm.low, worst.median.low) == 0.0
    other = compare(runs(make_family(tmp_path, "ppo", NEAR_500, env="Mine-v0")))
    assert other.tables[0].summaries[0].mean.high > 500.0  # nobody knows whether an own env goes on


def test_so_do_bands(tmp_path):
    rows = [[{"step": x, "episode_return": y, "kl": y / 1e5} for x in (1, 2)] for y in (5.0, 480.0, 490.0, 500.0, 500)]
    made = [make_run(tmp_path / str(seed), seed=seed, rows=found) for seed, found in enumerate(rows)]
    (line,) = plot_runs([Run(folder) for folder in made]).panels[0].lines
    assert (line.band.spread, line.band.high.max()) == ("interval", 500.0)
    (line,) = plot_runs([Run(folder) for folder in made], "kl").panels[0].lines
    assert line.band.low.min() >= 0.0


@pytest.mark.parametrize("limit", ["9" * 400, "-3", "soon"])
def test_a_limit_that_no_run_can_have_gives_no_bounds(limit):
    assert bounds_of("episode_return", "CartPole-v1", {"max_episode_steps": limit}) == UNBOUNDED
