import json
import os
import re
from pathlib import Path

import pytest

from surefoot.errors import UsageError
from surefoot.runs.directory import RunDirectory, describe, escape, find_run, list_runs
from surefoot.runs.files import write_json


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_run(root, name, age=0):
    """A run with a manifest, `age` seconds old."""
    path = root / name
    path.mkdir(parents=True)
    write_json(path / "manifest.json", {"env": "CartPole-v1", "algo": "ppo", "seed": 0})
    os.utime(path / "manifest.json", (1_000_000 - age, 1_000_000 - age))
    return path


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE_Pong-v5"),
        ("my/file.py:Env", "my_file.py_Env"),
        ("../../etc/passwd", "etc_passwd"),
        ("/abs/file.py:E", "abs_file.py_E"),
        ("..", "env"),
        ("", "env"),
        ("Ünï cödé-v0", "Ünï cödé-v0"),
        ("a\nb\x00c", "a_b_c"),
        ("a\\b", "a_b"),
    ],
)
def test_an_env_id_becomes_one_path_component(name, escaped):
    assert escape(name) == escaped
    assert len(Path(escape(name)).parts) == 1


@pytest.mark.usefixtures("here")
def test_a_new_run_lies_under_env_algo_time_and_seed():
    run = RunDirectory.create(None, "ALE/Pong-v5", "ppo", 3)
    assert re.fullmatch(r"runs/ALE_Pong-v5/ppo/\d{8}-\d{6}-s3(-\d+)?", str(run.path))
    assert run.checkpoints.is_dir()
    assert run.log.read_text() == ""


@pytest.mark.usefixtures("here")
def test_runs_of_the_same_second_do_not_share_a_directory():
    paths = [RunDirectory.create(None, "E-v0", "ppo", 0).path for _ in range(4)]
    assert len(set(paths)) == 4


@pytest.mark.parametrize("name", ["plain", "with space", "ünï/çödé", "a'b\"c", "deep/er/still", "-dash", "new\nline"])
def test_a_given_directory_of_any_name_is_made(tmp_path, name):
    run = RunDirectory.create(tmp_path / name, "E-v0", "ppo", 0)
    assert run.path == tmp_path / name
    run.lock()
    run.set_status("running", step=5)
    assert run.read_status() == {"state": "running", "step": 5}
    run.unlock()
    assert run.read_status() == {"state": "interrupted", "step": 5}  # nobody is there to run it
    add_run(tmp_path, "other")
    write_json(run.manifest, {})
    assert find_run(run.path, tmp_path).path == run.path


def test_an_existing_run_is_refused_and_left_alone(tmp_path):
    path = add_run(tmp_path, "mine")
    with pytest.raises(UsageError, match=r"already holds a run.*--run-dir"):
        RunDirectory.create(path, "E-v0", "ppo", 0)
    assert os.listdir(path) == ["manifest.json"]


def test_an_existing_directory_without_a_run_is_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert RunDirectory.create(tmp_path, "E-v0", "ppo", 0).path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"cannot write the run directory.*--run-dir"):
            RunDirectory.create(path, "E-v0", "ppo", 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match=r"Permission denied.*--run-dir"):
        RunDirectory.create(tmp_path / "run", "E-v0", "ppo", 0)


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device; choose another --run-dir"):
        RunDirectory.create(tmp_path / "run", "E-v0", "ppo", 0)


@pytest.mark.parametrize("path", ["x" * 300, None])
@pytest.mark.usefixtures("here")
def test_a_name_too_long_for_the_file_system_is_told(path):
    Path("runs").mkdir()
    with pytest.raises(UsageError, match="too long"):
        RunDirectory.create(path, "E" * 300, "ppo", 0)


def test_status_of_a_run_without_one_is_unknown(tmp_path):
    assert RunDirectory(tmp_path).read_status() == {"state": "unknown"}


def test_notes_are_appended(tmp_path):
    run = RunDirectory.create(tmp_path, "E-v0", "ppo", 0)
    run.note("one")
    run.note("zwölf")
    assert run.log.read_text(encoding="utf-8") == "one\nzwölf\n"


def test_metrics_without_the_torn_last_line(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.read_metrics() == []
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert run.read_metrics() == [{"step": 1}, {"step": 2}]


def test_runs_are_listed_oldest_first(tmp_path):
    old, new = add_run(tmp_path, "z/ppo/old", age=100), add_run(tmp_path, "a/ppo/new")
    assert [run.path for run in list_runs(tmp_path)] == [old, new]
    assert list_runs(tmp_path / "none") == []


def test_latest_is_the_newest_run(tmp_path):
    new = add_run(tmp_path, "a/new")
    add_run(tmp_path, "z/old", age=100)
    assert find_run("latest", tmp_path).path == new


@pytest.mark.parametrize("name", ["20260102", "20260102-000000-s1", "Pendulum-v1", "Pendulum-v1/ppo/2026"])
def test_a_unique_prefix_of_name_or_path_finds_a_run(tmp_path, name):
    add_run(tmp_path, "CartPole-v1/ppo/20260101-000000-s1")
    wanted = add_run(tmp_path, "Pendulum-v1/ppo/20260102-000000-s1")
    assert find_run(name, tmp_path).path == wanted


def test_a_path_finds_a_run_anywhere(tmp_path):
    elsewhere = add_run(tmp_path, "elsewhere")
    assert find_run(elsewhere, tmp_path / "runs").path == elsewhere
    assert find_run(str(elsewhere) + "/", tmp_path / "runs").path == elsewhere


def test_an_ambiguous_prefix_lists_the_runs(tmp_path):
    add_run(tmp_path, "E-v0/ppo/20260101-000000-s1")
    add_run(tmp_path, "E-v0/ppo/20260101-000000-s2")
    with pytest.raises(UsageError, match=r"(?s)'20260101' fits 2 runs.*-s1.*-s2"):
        find_run("20260101", tmp_path)


@pytest.mark.parametrize("other", ["20260101-000000-s10", "20260101-000000-s1-2"])
def test_a_full_name_wins_over_longer_ones(tmp_path, other):
    wanted = add_run(tmp_path, "E-v0/ppo/20260101-000000-s1")
    add_run(tmp_path, f"E-v0/ppo/{other}")
    assert find_run("20260101-000000-s1", tmp_path).path == wanted


def test_an_unknown_run_says_how_to_find_one(tmp_path):
    with pytest.raises(UsageError, match="surefoot train"):
        find_run("latest", tmp_path)
    add_run(tmp_path, "E-v0/ppo/20260101-000000-s1")
    with pytest.raises(UsageError, match=r"no run '2027'.*surefoot list runs.*latest"):
        find_run("2027", tmp_path)


def test_describe_says_what_a_run_is(tmp_path):
    run = RunDirectory(add_run(tmp_path, "mine"))
    run.set_status("done", step=100, eval_return=9.5)
    assert describe(run) == {
        "run": str(run.path),
        "env": "CartPole-v1",
        "algo": "ppo",
        "seed": 0,
        "steps": 100,
        "return": 9.5,
        "best": 9.5,
        "state": "done",
    }


def test_describe_knows_the_best_return_and_the_last_step_of_a_run_that_was_killed(tmp_path):
    run = RunDirectory(add_run(tmp_path, "mine"))
    run.set_status("running", step=0)
    rows = [{"step": 10, "episode_return": 50.0}, {"step": 20, "episode_return": None}]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = describe(run)
    assert (found["steps"], found["best"], found["return"], found["state"]) == (20, 50.0, None, "interrupted")
    with open(run.metrics, "a") as file:
        file.write(json.dumps({"step": 30, "episode_return": 60.0, "eval_return": 7.0}) + "\n")
    assert describe(run)["best"] == 7.0  # evaluations count, where there are any


def test_describe_of_a_damaged_run_does_not_fail(tmp_path):
    run = RunDirectory(add_run(tmp_path, "mine"))
    run.manifest.write_text('{"env": ')
    assert describe(run) == {"run": str(run.path), "state": "unreadable"}
