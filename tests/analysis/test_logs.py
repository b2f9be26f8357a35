"""Columns of logs: the same numbers as whole rows, at the cost of what is asked for."""

import json

import pytest

from surefoot.analysis import logs
from surefoot.analysis.logs import Log
from surefoot.analysis.plotting import plot_runs
from surefoot.errors import CheckpointError
from surefoot.runs import Run
from tests.analysis.synthetic import make_family, make_run

ROWS = [
    {"step": 10, "update": 1, "kl": 0.5, "episode_return": None},
    {"step": 20, "update": 2, "kl": 0.25, "episode_return": 5.0, "eval_return": 7.0},
    {"step": 20, "update": 2, "kl": 0.125, "episode_return": 6.0, "eval_return": float("nan")},
    {"step": 40, "update": 3, "kl": 1e-9, "episode_return": float("inf")},
]


def points(curve):
    return list(zip(curve.x.tolist(), curve.y.tolist(), strict=True))


def test_a_curve_decodes_no_rows(tmp_path, monkeypatch):
    runs = [Run(folder) for folder in make_family(tmp_path, "ppo", [1.0, 2.0])]
    monkeypatch.setattr(logs, "read_rows", lambda run: pytest.fail("the rows were decoded"))
    for metric in ("episode_return", "seconds"):
        assert len(plot_runs(runs, metric).panels[0].lines[0].band.x) == 10


@pytest.mark.parametrize("changed", [{}, {"note": "a \\ and a {"}, {"more": {"nested": 1}}])
def test_rows_that_look_otherwise_give_the_same_curves(tmp_path, changed):
    log = Log(Run(make_run(tmp_path / "a", rows=[row | changed for row in ROWS])))
    assert points(log.curve("kl")) == [(10.0, 0.5), (20.0, 0.125), (40.0, 1e-9)]  # of two rows at 20 the last counts
    assert points(log.curve("episode_return", "updates")) == [(2.0, 6.0)]
    assert points(log.curve("eval_return")) == [(20.0, 7.0)]
    assert points(log.curve("kl", "time")) == [(0.2, 0.5), (0.4, 0.125), (0.8, 1e-9)]
    assert points(log.curve("seconds")) == [(10.0, 0.2), (20.0, 0.4), (40.0, 0.8)]
    assert points(log.curve("nothing")) == []


def test_a_log_that_grows_while_it_is_read_has_rows_of_one_moment(tmp_path):
    folder = make_run(tmp_path / "a", rows=ROWS)
    log = Log(Run(folder))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 50, "update": 4, "kl": 9.0}) + "\n")
    assert points(log.curve("kl"))[-1] == (40.0, 1e-9)
    (folder / "metrics.jsonl").write_text(json.dumps(ROWS[0]) + "\n")  # a resume cut it back
    assert points(log.curve("update")) == [(10.0, 1.0)]


def test_damage_is_found(tmp_path):
    folder = make_run(tmp_path / "a", rows=ROWS)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(CheckpointError, match="damaged in line 5"):
        Log(Run(folder))
    assert points(Log(Run(make_run(tmp_path / "b", rows=[]))).curve("kl")) == []
