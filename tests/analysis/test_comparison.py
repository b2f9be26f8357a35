"""Comparisons of runs with known scores."""

import json
import math
import shutil

import numpy as np
import pytest

from surefoot.analysis.comparison import compare
from surefoot.analysis.curves import Curve
from surefoot.analysis.scores import reach, tail_mean, usual_threshold
from surefoot.analysis.wording import columns, to_csv, to_data, verdicts
from surefoot.errors import UsageError
from surefoot.runs import Run
from tests.analysis.synthetic import make_family, make_run


def runs(*families):
    return [Run(folder) for family in families for folder in family]


def curve(x, y):
    return Curve(np.array(x, np.float64), np.array(y, np.float64))


def test_two_methods_on_one_env(tmp_path):
    found = compare(
        runs(make_family(tmp_path, "vpg", [10, 20, 30, 40]), make_family(tmp_path, "ppo", [100, 50, 60, 90]))
    )
    (table,) = found.tables
    best, other = table.summaries
    assert (table.env, best.name, other.name) == ("CartPole-v1", "ppo", "vpg")
    assert (best.mean.value, best.median.value, best.iqm.value) == (75.0, 75.0, 75.0)
    assert (best.runs, best.improvement, best.seeds_needed, best.settled) == (4, None, None, None)
    assert best.gap.value == pytest.approx(1 - (90 + 40 + 50 + 80) / 4 / 90)  # 10 counts as 0 and 100 as 1
    assert other.improvement.value == 1.0
    assert other.settled is True
    assert list(verdicts(table)) == ["ppo is better than vpg"]
    assert found.references == {"CartPole-v1": (10.0, 100.0)}
    assert found.notes == ()


def test_an_open_question_says_how_many_seeds_would_settle_it(tmp_path):
    found = compare(runs(make_family(tmp_path, "vpg", [10, 30, 50]), make_family(tmp_path, "ppo", [20, 40, 60])))
    _, other = found.tables[0].summaries
    assert other.improvement.value == pytest.approx(6 / 9)
    assert (other.settled, other.seeds_needed) == (False, 46)
    assert list(verdicts(found.tables[0])) == ["ppo or vpg: open; about 46 seeds each would settle it"]
    same = compare(runs(make_family(tmp_path / "x", "a", [1, 2, 3]), make_family(tmp_path / "x", "b", [1, 2, 3])))
    assert "no visible difference" in next(verdicts(same.tables[0]))


def test_several_envs_are_normalised_and_a_reference_overrides(tmp_path):
    """a: 10, 30 of 10…30 and −300, −100 of −300…−100; b in the middle of both."""
    families = [
        make_family(tmp_path, "a", [10, 30]),
        make_family(tmp_path, "b", [20, 20]),
        make_family(tmp_path, "a", [-300, -100], env="Pendulum-v1"),
        make_family(tmp_path, "b", [-200, -200], env="Pendulum-v1"),
    ]
    found = compare(runs(*families))
    assert [table.env for table in found.tables] == [None, "CartPole-v1", "Pendulum-v1"]
    assert {summary.name: summary.mean.value for summary in found.tables[0].summaries} == {"a": 0.5, "b": 0.5}
    assert found.tables[0].summaries[0].runs == 4
    given = compare(runs(*families), references={"CartPole-v1": (0.0, 40.0), "Pendulum-v1": (-400.0, 0.0)})
    assert given.tables[0].summaries[0].mean.value == pytest.approx(0.5)
    assert given.tables[0].summaries[0].gap.value == pytest.approx(0.5)
    with pytest.raises(UsageError, match=r"--reference names 'CartPole'; did you mean 'CartPole-v1'\?"):
        compare(runs(*families), references={"CartPole": (0.0, 1.0)})


def test_a_method_that_lacks_an_env_is_said(tmp_path):
    found = compare(
        runs(
            make_family(tmp_path, "a", [1, 2]),
            make_family(tmp_path, "b", [1, 2]),
            make_family(tmp_path, "a", [1, 2], env="Pendulum-v1"),
        )
    )
    assert [table.env for table in found.tables] == ["CartPole-v1", "Pendulum-v1"]
    assert "b has no score on Pendulum-v1" in found.notes[0]


def test_one_seed_says_what_cannot_be_said(tmp_path):
    found = compare(runs(make_family(tmp_path, "a", [1]), make_family(tmp_path, "b", [2])))
    best, other = found.tables[0].summaries
    assert math.isnan(best.iqm.low)
    assert other.settled is None
    assert list(verdicts(found.tables[0])) == ["b or a: nothing can be said with one seed"]
    assert "one seed only: a on CartPole-v1, b on CartPole-v1" in found.notes[0]
    json.dumps(to_data(found), allow_nan=False)


def test_runs_without_a_final_evaluation_are_left_out_and_that_is_said(tmp_path):
    unfinished = make_run(tmp_path / "x", algo="ppo", seed=7, final=None)
    (unfinished / "status.json").write_text(json.dumps({"state": "failed"}))
    found = compare([*runs(make_family(tmp_path, "ppo", [1, 2])), Run(unfinished)])
    assert found.tables[0].summaries[0].runs == 2
    assert "x is left out: it has no final evaluation (state: failed)" in found.notes[0]
    assert "left out may have failed" in found.notes[1]
    with pytest.raises(UsageError, match=r"there is no score for .*--metric episode_return"):
        compare([Run(unfinished)])


def test_a_metric_at_a_step(tmp_path):
    """The return climbs by 10 per 100 steps to 100: rows in (450, 500] are 50; at the end those in (900, 1000]: 100."""
    family = runs(make_family(tmp_path, "ppo", [100, 100]))
    assert compare(family, at_step=500).tables[0].summaries[0].mean.value == 50.0
    assert compare(family, metric="episode_return").tables[0].summaries[0].mean.value == 100.0
    assert compare(family, at_step=550).tables[0].summaries[0].mean.value == 50.0  # of (495, 550]
    assert compare(family, metric="kl").tables[0].summaries[0].mean.value == pytest.approx(0.01)
    with pytest.raises(UsageError, match="it ends at step 1,000, before step 2,000"):
        compare(family, at_step=2000)
    with pytest.raises(UsageError, match="its first episode_return is at step 100, after step 99"):
        compare(family, at_step=99)
    with pytest.raises(UsageError, match=r"no metric|no run has a metric 'klx'; did you mean 'kl'"):
        compare(family, metric="klx")


def test_runs_of_different_lengths_are_said(tmp_path):
    short = [{"step": 100, "update": 1, "episode_return": 1.0}, {"step": 400, "update": 2, "episode_return": 2.0}]
    found = compare(runs(make_family(tmp_path, "ppo", [1, 2]), [make_run(tmp_path / "x", seed=9, rows=short)]))
    assert any("end between 400 and 1,000 steps" in note and "--at-step 400" in note for note in found.notes)
    assert not any("end between" in note for note in compare(runs(make_family(tmp_path / "y", "a", [1, 2]))).notes)


def test_torn_and_damaged_lines_and_vanished_runs(tmp_path):
    family = make_family(tmp_path, "ppo", [1, 2, 3, 4])
    with open(family[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 1100, "upd')  # being written
    (family[1] / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    found = runs(family)
    shutil.rmtree(family[2])
    result = compare(found, metric="episode_return")
    assert result.tables[0].summaries[0].runs == 2
    assert any("it is gone" in note for note in result.notes)
    assert any("damaged in line 2" in note for note in result.notes)


def test_nothing_to_read(tmp_path):
    (folder,) = make_family(tmp_path, "ppo", [1])
    (folder / "config.toml").unlink()
    with pytest.raises(UsageError, match=r"none of these runs can be read\n.*left out"):
        compare(runs([folder]))


def test_when_a_threshold_is_reached():
    """The average of up to five rows: 0, 5, 6.7, 7.5, 8, 10 for [0, 10, 10, 10, 10, 10]."""
    slow = curve([1, 2, 3, 4, 5, 6], [0, 10, 10, 10, 10, 10])
    assert reach([slow], 8.0).steps == 5.0
    assert reach([slow], 9.0).steps == 6.0
    found = reach([slow, curve([1, 2], [0, 0]), curve([1, 9], [0, 0])], 8.0)
    assert (found.steps, found.reached, found.runs) == (5.0, 1, 3)  # of the two that were still there, one: a half
    assert reach([curve([1, 9], [0, 0])] * 2, 8.0).steps is None
    best, other = (curve(range(8), [-1000, *[end] * 7]) for end in (-100, -500))
    assert usual_threshold([[best], [other]]) == -190.0
    steep = [curve(range(8), [0, 0, 0, 1, 2, 4, 8, top]) for top in (16, 17)]
    assert reach(steep, usual_threshold([steep])).reached == 2  # by the best group itself
    assert tail_mean(curve([1, 50, 95, 100], [0, 0, 4, 6]), 100.0) == 5.0


def test_the_csv_has_a_line_per_method_and_empty_cells(tmp_path):
    found = compare(runs(make_family(tmp_path, "a,b", [1]), make_family(tmp_path, "c", [2, 3])))
    head, *lines = to_csv(found).splitlines()
    assert head.startswith("env,method,runs,mean,mean_low,mean_high,median")
    assert lines[0].startswith("CartPole-v1,c,2,2.5,")
    assert lines[1].startswith('CartPole-v1,"a,b",1,1.0,,,')
    assert len(columns(found.tables[0])[0]) == len(columns(found.tables[0])[1][0])


@pytest.mark.parametrize("odd", [[1], {"a": 1}, "text", None, True, 10**400, float("nan")])
def test_rows_and_results_may_hold_anything(tmp_path, odd):
    family = make_family(tmp_path, "ppo", [1, 2, 3])
    with open(family[0] / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": odd, "episode_return": odd}) + "\n")
    (family[0] / "timings.jsonl").write_text(json.dumps({"step": odd, "seconds": odd}) + "\n")
    (family[1] / "result.json").write_text(json.dumps({"eval": odd}))
    (family[2] / "result.json").write_text(json.dumps({"eval": {"mean_return": odd}}))
    assert compare(runs(family)).tables[0].summaries[0].runs in (1, 2)


def test_a_run_without_a_score_says_nothing_about_lengths(tmp_path):
    """It is left out, so it has no advantage either."""
    long = [{"step": 9_000, "update": 1, "episode_return": 1.0}]
    made = [*make_family(tmp_path, "ppo", [1, 2]), make_run(tmp_path / "going", seed=7, final=None, rows=long)]
    notes = compare(runs(made)).notes
    assert any("left out" in note for note in notes)
    assert not any("longer runs have an advantage" in note for note in notes)
