"""The run as it is read: everything by its name, while it goes on and after it."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot
from surefoot.errors import CheckpointError, UsageError

QUIET = {"progress": False, "preset": "none", "num_envs": 4, "rollout_length": 64, "seed": 1, "num_minibatches": 2}
SHORT = {**QUIET, "total_steps": 1024, "eval_every": 512, "selection_episodes": 2, "eval_episodes": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("read") / "one"
    return surefoot.train("CartPole-v1", run_dir=path, name="first", tags="a,b", checkpoint_every=256, **SHORT)


def test_a_run_opens_by_path_by_prefix_and_as_the_latest(run, tmp_path):
    assert surefoot.Run(run.path).path == surefoot.Run(str(run.path)).path == run.path
    with pytest.raises(UsageError, match="there is no run"):
        surefoot.Run("nowhere")
    made = surefoot.train("CartPole-v1", **{**SHORT, "eval_episodes": 0}, name="pole")
    assert surefoot.Run("pole").path == surefoot.Run("latest").path == surefoot.Run().path == made.path


def test_what_train_returns_is_the_same_run(run):
    assert type(run) is surefoot.Run
    again = surefoot.Run(run.path)
    for name in ("config", "manifest", "status", "metrics", "timings", "episodes", "result", "checkpoints", "tags"):
        assert getattr(again, name) == getattr(run, name), name


def test_settings_state_and_names(run):
    assert run.config["algo"] == run.manifest["algo"] == "ppo"
    assert run.status["state"] == "done"
    assert run.status["alive"] is False
    assert (run.name, run.tags) == ("first", ("a", "b"))
    assert "name first" in repr(run)
    assert "first" in run._repr_html_()
    assert len(repr(run).splitlines()) == 1


def test_rows_checkpoints_and_videos(run):
    assert [row["step"] for row in run.timings] == [row["step"] for row in run.metrics]
    assert len(run.episodes) == run.result["episodes"]
    assert run.checkpoints.steps == (512, 768, 1024)
    assert run.checkpoints.latest == 1024
    assert run.checkpoints.best == run.result["best"]["step"]
    assert run.videos == []
    made = [run.directory.videos / name for name in ("1024.mp4", "256.mp4", "256-beside-untrained.mp4", "x.mp4")]
    run.directory.videos.mkdir()
    for file in made:
        file.touch()
    assert [file.name for file in run.videos] == ["x.mp4", "256-beside-untrained.mp4", "256.mp4", "1024.mp4"]


def test_a_run_that_goes_on_shows_what_it_has_so_far(tmp_path):
    seen = []

    class Look(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 3:
                trainer.warn("something")
                run = surefoot.Run(tmp_path / "run")
                seen.append((run.status, [row["step"] for row in run.metrics], run.warnings, run.checkpoints))
                with pytest.raises(CheckpointError):
                    _ = run.result

    surefoot.train("CartPole-v1", run_dir=tmp_path / "run", **{**SHORT, "log_every": 256}, callbacks=[Look()])
    ((status, steps, warnings, checkpoints),) = seen
    assert status["state"] == "running"
    assert status["alive"] is True
    assert steps == [256, 512]
    assert warnings == [{"name": None, "step": 768, "message": "something"}]
    assert checkpoints.latest == 512
    assert surefoot.Run(tmp_path / "run").warnings == []  # of those with a name; log.txt has the others


def test_metrics_since_costs_what_is_new_and_tolerates_a_torn_line(tmp_path, run):
    copy = surefoot.Run(Path(shutil.copytree(run.path, tmp_path / "copy")))
    file, whole = copy.directory.metrics, run.directory.metrics.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"")
    assert copy.metrics_since(0) == ([], 0)
    file.write_bytes(lines[0] + lines[1][:10])
    rows, offset = copy.metrics_since(0)
    assert (rows, offset) == ([run.metrics[0]], len(lines[0]))
    assert copy.metrics_since(offset) == ([], offset)
    file.write_bytes(whole)
    assert copy.metrics_since(offset) == (run.metrics[1:], len(whole))
    assert copy.metrics_since(len(whole)) == ([], len(whole))
    file.write_bytes(lines[0])  # a resume has cut it back: everything is new
    assert copy.metrics_since(len(whole)) == ([run.metrics[0]], len(lines[0]))
    file.unlink()
    assert copy.metrics_since(len(whole)) == ([], 0)


def test_metrics_since_does_not_read_what_is_known(tmp_path, run):
    copy = surefoot.Run(Path(shutil.copytree(run.path, tmp_path / "copy")))
    data = copy.directory.metrics.read_bytes()
    first = data.index(b"\n") + 1
    copy.directory.metrics.write_bytes(b"x" * (first - 1) + data[first - 1 :])  # damaged, but long read
    assert copy.metrics_since(first)[0] == run.metrics[1:]
    with pytest.raises(CheckpointError, match="damaged in line 1:"):
        copy.metrics_since(0)


def test_to_csv(run, tmp_path):
    for log in ("metrics", "timings", "episodes"):
        path = run.to_csv(tmp_path / f"{log}.csv", log)
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["step"]) for row in rows] == [row["step"] for row in getattr(run, log)]
    with open(run.to_csv(tmp_path / "metrics.csv"), encoding="utf-8", newline="") as file:
        for read, row in zip(csv.DictReader(file), run.metrics, strict=True):
            assert {name: float(cell) for name, cell in read.items() if cell} == {
                name: value for name, value in row.items() if value is not None
            }
    with pytest.raises(UsageError, match="there is no log"):
        run.to_csv(tmp_path / "x.csv", "video")
    with pytest.raises(UsageError, match="cannot write"):
        run.to_csv(tmp_path / "missing" / "x.csv")


def test_a_frame_without_pandas_says_how_to_install_it(run, monkeypatch):
    monkeypatch.setattr("surefoot.runs.run.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pandas"):
        run.frame()


def test_a_frame_has_the_metrics_as_columns_of_floats(run, monkeypatch, tmp_path):
    """With pandas itself where it is installed, else with the one call of it that is needed."""
    package = tmp_path / "pandas.py"
    package.write_text(
        "class DataFrame(dict):\n"
        "    def __init__(self, rows):\n"
        "        names = list(dict.fromkeys(name for row in rows for name in row))\n"
        "        super().__init__({name: [row.get(name) for row in rows] for name in names})\n"
        "    def astype(self, kind):\n"
        "        empty = float('nan')\n"
        "        for name, column in self.items():\n"
        "            self[name] = [empty if x is None else kind(x) for x in column]\n"
        "        return self\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    frame = run.frame()
    assert list(frame) == list(dict.fromkeys(name for row in run.metrics for name in row))
    for name in frame:
        for found, row in zip(list(frame[name]), run.metrics, strict=True):
            assert isinstance(found, float)
            assert math.isnan(found) if row.get(name) is None else found == row[name]
    assert list(run.frame("episodes")["length"]) == [row["length"] for row in run.episodes]
    monkeypatch.delitem(sys.modules, "pandas", raising=False)


def test_reading_a_run_imports_no_torch(run):
    code = (
        "import sys, surefoot\n"
        f"run = surefoot.Run({str(run.path)!r})\n"
        "assert run.metrics and run.episodes and run.config and run.status and run.checkpoints.steps and repr(run)\n"
        "heavy = {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_episodes_for_tools_that_read_monitor_files(run, tmp_path):
    """The format of Stable-Baselines3's Monitor: a comment with JSON, then returns, lengths and seconds."""
    file = run.to_monitor(tmp_path / "logs")
    first, *rows = file.read_text(encoding="utf-8").splitlines()
    assert file.name == "0.monitor.csv"
    facts = json.loads(first.removeprefix("#"))
    assert facts["env_id"] == "CartPole-v1"
    assert facts["t_start"] > 1e9
    found = list(csv.DictReader(rows))
    assert [float(row["r"]) for row in found] == [row["return"] for row in run.episodes]
    assert [int(row["l"]) for row in found] == [row["length"] for row in run.episodes]
    assert all(float(row["t"]) >= 0 for row in found)
