"""Trackers mirror a run from a process of their own, and nothing that they do there touches it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import surefoot
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.training.reports import trackers as mirror
from surefoot.training.reports.trackers import require_tracker, rows_after, run_name

SHORT = {"preset": "none", "total_steps": 512, "num_envs": 4, "rollout_length": 32, "log_every": 128, "seed": 3}
SHORT |= {"eval_episodes": 2, "progress": False}

WANDB = """
import json, os, sys, time
def note(**what):
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(what) + "\\n")
def trip(where):
    if os.environ.get("FAKE_AT") == where:
        exec(os.environ["FAKE_DOES"])
trip("import")
class Settings:
    def __init__(self, **kwargs):
        self.kwargs = kwargs
class Run:
    id = "run-7"
    summary = {}
    def log(self, row, step):
        trip("log")
        note(step=step, row=row)
    def finish(self, exit_code):
        trip("finish")
        note(finish=exit_code, summary=self.summary)
def init(**kwargs):
    trip("init")
    settings = kwargs.pop("settings").kwargs
    assert settings["silent"] and settings["console"] == "off" and settings["finish_timeout"] < 10
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    note(init=kwargs)
    return Run()
"""

MLFLOW = """
import json, sys
from types import SimpleNamespace as Namespace
def note(**what):
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(what) + "\\n")
class MlflowClient:
    made = False
    def get_experiment_by_name(self, name):
        return Namespace(experiment_id="1") if self.made else None
    def create_experiment(self, name):
        note(experiment=name)
        self.made = True
    def create_run(self, experiment, run_name):
        note(create=run_name)
        return Namespace(info=Namespace(run_id="m-1"))
    def update_run(self, run_id, status):
        note(update=run_id, status=status)
    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        note(metrics=[(m.key, m.value, m.step) for m in metrics], params={p.key: p.value for p in params})
    def set_terminated(self, run_id, status):
        note(terminated=status)
"""
ENTITIES = """
from types import SimpleNamespace as Namespace
def Metric(key, value, timestamp, step):
    return Namespace(key=key, value=value, step=step)
def Param(key, value):
    assert len(value) <= 6000
    return Namespace(key=key, value=value)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Packages of these names for our process and for the mirror's; `FAKE_AT`, `FAKE_DOES` break the first."""
    folder = tmp_path / "fakes"
    (folder / "mlflow").mkdir(parents=True)
    (folder / "wandb.py").write_text(WANDB)
    (folder / "mlflow" / "__init__.py").write_text(MLFLOW)
    (folder / "mlflow" / "entities.py").write_text(ENTITIES)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


def seen():
    return [json.loads(line) for line in Path("seen.jsonl").read_text(encoding="utf-8").splitlines()]


def plain(run):
    return [{name: x for name, x in row.items() if name != "step" and x is not None} for row in run.metrics]


@pytest.mark.usefixtures("fakes")
def test_wandb_gets_every_row_the_settings_and_the_evaluation():
    run = surefoot.train("CartPole-v1", trackers=["wandb"], **SHORT)
    begin, *rows, end = seen()
    assert begin["init"]["project"] == "surefoot"
    assert begin["init"]["name"] == str(run.path.relative_to("runs"))
    assert begin["init"]["config"]["total_steps"] == 512
    assert begin["init"]["id"] is None
    assert [row["step"] for row in rows] == [128, 256, 384, 512]
    assert all(row["row"].pop("steps_per_second") > 0 for row in rows)
    assert [row["row"] for row in rows] == plain(run)
    assert end["finish"] == 0
    assert end["summary"]["final_mean_return"] == run.result["eval"]["mean_return"]
    assert "is off" not in run.directory.log.read_text()


@pytest.mark.usefixtures("fakes")
def test_mlflow_gets_the_same():
    run = surefoot.train("CartPole-v1", trackers=["mlflow"], **SHORT)
    experiment, created, params, *rows, final, end = seen()
    assert experiment == {"experiment": "surefoot"}
    assert created == {"create": str(run.path.relative_to("runs"))}
    assert params["params"]["total_steps"] == "512"
    assert [{k: v for k, v, _ in row["metrics"] if k != "steps_per_second"} for row in rows] == plain(run)
    assert {step for row in rows for _, _, step in row["metrics"]} == {128, 256, 384, 512}
    assert ["final_mean_return", run.result["eval"]["mean_return"], 512] in final["metrics"]
    assert end == {"terminated": "FINISHED"}


@pytest.mark.usefixtures("fakes")
def test_a_resumed_run_goes_on_in_the_same_one_and_sends_no_row_twice():
    run = surefoot.train("CartPole-v1", trackers=["wandb", "mlflow"], **SHORT)
    before = len(seen())
    surefoot.resume(run, total_steps=768, progress=False)
    later = seen()[before:]
    assert [entry["init"]["id"] for entry in later if "init" in entry] == ["run-7"]
    assert [entry["step"] for entry in later if "step" in entry] == [640, 768]
    assert {"update": "m-1", "status": "RUNNING"} in later


@pytest.mark.sampled(4)
@pytest.mark.parametrize("at", ["import", "init", "log", "finish"])
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raise OSError('the server is down')", "OSError: the server is down"),
        ("sys.exit('not logged in')", "not logged in"),
        ("os.kill(os.getpid(), 11)", "ended without a message"),
        ("time.sleep(1e6)", "not done after 1 s"),
    ],
    ids=["raises", "exits", "crashes", "hangs"],
)
@pytest.mark.usefixtures("fakes")
def test_whatever_a_tracker_does_the_run_is_the_same(at, does, said, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(mirror, "END_SECONDS", 1.0)
    whole = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **SHORT)
    monkeypatch.setenv("FAKE_AT", at)
    monkeypatch.setenv("FAKE_DOES", does)
    monkeypatch.setattr(mirror, "find_spec", lambda name: mirror)  # looking for it must not need it to be sound
    monkeypatch.setattr(mirror, "origin", "here", raising=False)
    if "sleep" not in does:
        monkeypatch.setattr(mirror, "END_SECONDS", 30.0)  # a busy machine
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "run", trackers=["wandb"], **SHORT)
    assert run.directory.metrics.read_bytes() == whole.directory.metrics.read_bytes()
    assert run.result["eval"] == whole.result["eval"]
    assert run.directory.read_status()["state"] == "done"
    (warning,) = [line for line in run.directory.log.read_text().splitlines() if "wandb is off" in line]
    assert said in warning
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err


class Stop(surefoot.Callback):
    def __init__(self, error):
        self.error = error

    def on_rollout(self, trainer, rollout):
        if trainer.update == 2:
            raise self.error


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 255), (RuntimeError("mine"), 1)])
@pytest.mark.usefixtures("fakes")
def test_the_tracker_learns_how_the_run_ended(error, code):
    with pytest.raises(type(error)):
        surefoot.train("CartPole-v1", trackers=["wandb"], callbacks=[Stop(error)], **SHORT)
    assert seen()[-1] == {"finish": code, "summary": {}}


class Move(surefoot.Callback):
    """Renames the run when the tracker has begun, and waits until it has sent a row from the new place."""

    def on_update(self, trainer, metrics):
        if trainer.update == 1:
            wait_for(lambda: Path("seen.jsonl").exists())
            trainer.run.path.rename("moved")
        if trainer.update == 3:
            wait_for(lambda: any("step" in entry for entry in seen()))


def wait_for(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_a_tracker_follows_a_run_that_is_renamed():
    run = surefoot.train("CartPole-v1", run_dir="run", trackers=["wandb"], callbacks=[Move()], **SHORT)
    assert run.path == Path("moved")
    assert [entry["step"] for entry in seen() if "step" in entry] == [128, 256, 384, 512]
    assert seen()[-1]["finish"] == 0
    assert json.loads(Path("moved/tracker-wandb.json").read_text(encoding="utf-8"))["step"] == 512
    assert not Path("run").exists()
    assert "is off" not in run.directory.log.read_text()


@pytest.mark.usefixtures("fakes")
def test_a_mirror_ends_with_a_run_that_is_killed():
    Path("run").mkdir()
    Path("run/config.toml").write_text("seed = 1\n", encoding="utf-8")
    command = [sys.executable, "-m", "surefoot.training.reports.trackers", "wandb", "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        child.stdin.close()  # as the kernel does for the dead
        assert child.wait(30) == 0
    assert seen()[-1] == {"finish": 255, "summary": {}}


def test_missing_and_unknown_trackers_are_refused_before_anything_begins(tmp_path):
    with pytest.raises(UsageError, match=r"unknown tracker 'wandbb'; did you mean 'wandb'\?"):
        surefoot.train("CartPole-v1", trackers=["wandbb"], **SHORT)
    (tmp_path / "mlflow").mkdir()  # its output folder in the working directory is no installation
    for name in ("wandb", "mlflow"):
        if mirror.find_spec(name) is None:
            with pytest.raises(UsageError, match=rf'{name} is not installed; pip install "surefoot\[{name}\]"'):
                require_tracker(name)
    assert not Path("runs").exists()


def test_names_and_rows(tmp_path):
    assert run_name(RunDirectory(Path("runs/a/b"))) == "a/b"
    assert run_name(RunDirectory(tmp_path / "elsewhere")) == "elsewhere"
    run = RunDirectory(tmp_path)
    assert list(rows_after(run, 0)) == []
    run.metrics.write_text('{"step": 1, "x": 2.0, "y": null}\n{"step": 2, "x": 3.0}\n{"st')
    assert list(rows_after(run, 1)) == [(2, {"x": 3.0})]
