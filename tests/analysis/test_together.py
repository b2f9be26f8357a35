"""Learning curves over several envs, on numbers worked out by hand."""

import pytest

from surefoot.analysis.comparison import compare
from surefoot.runs import Run
from tests.analysis.synthetic import make_family, make_run

REFERENCES = {"CartPole-v1": (0.0, 100.0), "Mine-v0": (0.0, 10.0)}


def runs(*families):
    return [Run(folder) for family in families for folder in family]


def test_the_values_of_all_envs_are_normalised_and_pooled(tmp_path):
    """At the end: 0.4, 0.6 on CartPole and 0.2, 0.8 on the other; without the lowest and the highest 0.5."""
    families = [make_family(tmp_path, "ppo", [40, 60]), make_family(tmp_path, "ppo", [2, 8], env="Mine-v0")]
    found = compare(runs(*families), references=REFERENCES).together
    (line,) = found.lines
    assert (line.name, line.band.runs, line.band.spread) == ("ppo", 4, "interval")
    assert (line.band.x[0], line.band.x[-1], found.x_title) == (100.0, 1000.0, "environment steps")
    assert (line.band.middle[-1], line.band.middle[4]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert line.band.low[-1] < 0.5 < line.band.high[-1]
    assert found.about == "0 and 1 are 0 and 100 on CartPole-v1, 0 and 10 on Mine-v0."


def test_without_references_0_and_1_are_the_ends_of_the_envs_curves(tmp_path):
    families = [make_family(tmp_path, "a", [100, 100]), make_family(tmp_path, "a", [8, 8], env="Mine-v0")]
    families += [make_family(tmp_path, "b", [55, 55]), make_family(tmp_path, "b", [4, 4], env="Mine-v0")]
    best, other = compare(runs(*families)).together.lines
    assert (best.band.middle[-1], other.band.middle[0]) == (1.0, 0.0)
    assert best.band.high.max() <= 1.5  # runs do not differ here


def test_envs_of_different_lengths_share_an_axis(tmp_path):
    long = [{"step": 10_000 * i, "update": i, "episode_return": float(i)} for i in range(1, 11)]
    families = [make_family(tmp_path, "ppo", [40, 60])]
    families += [[make_run(tmp_path / f"long-{seed}", "Mine-v0", seed=seed, rows=long) for seed in (0, 1)]]
    found = compare(runs(*families), references=REFERENCES).together
    assert found.x_title == "share of each env's steps"
    assert (found.lines[0].band.x[0], found.lines[0].band.x[-1]) == (pytest.approx(0.1), 1.0)


def test_only_envs_that_every_method_was_run_on_count(tmp_path):
    families = [make_family(tmp_path, "a", [1, 2]), make_family(tmp_path, "a", [3, 4], env="Mine-v0")]
    assert compare(runs(families[0])).together is None
    families += [make_family(tmp_path, "b", [1, 2])]
    assert compare(runs(*families)).together is None
    families += [make_family(tmp_path, "b", [5], env="Mine-v0")]
    assert [line.band.spread for line in compare(runs(*families)).together.lines] == ["interval", "none"]
