import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from surefoot.errors import CheckpointError, UsageError
from surefoot.runs import Catalog, Run
from surefoot.runs.directory import RunDirectory, escape, shell_path
from surefoot.runs.files import write_json
from surefoot.runs.index import describe, find_run, list_runs


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


def test_a_run_that_another_process_trained_meanwhile_is_left_alone(tmp_path, monkeypatch):
    """It was not there when this process looked, and is done when this process gets the lock."""
    lock = RunDirectory.lock

    def late(run):
        write_json(run.manifest, {})
        run.log.write_text("trained")
        lock(run)

    monkeypatch.setattr(RunDirectory, "lock", late)
    with pytest.raises(UsageError, match=r"already holds a run.*--run-dir"):
        RunDirectory.create(tmp_path / "run", "E-v0", "ppo", 0)
    run = RunDirectory(tmp_path / "run")
    assert run.log.read_text() == "trained"
    assert not run.is_locked()


def test_an_existing_directory_without_a_run_is_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints").mkdir()
    assert RunDirectory.create(tmp_path, "E-v0", "ppo", 0).path == tmp_path
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "result.json", "log.txt", "checkpoints"])
def test_files_of_others_are_not_overwritten(tmp_path, name):
    (tmp_path / name).write_text("mine")
    for refuse in (RunDirectory.check_place, lambda path: RunDirectory.create(path, "E-v0", "ppo", 0)):
        with pytest.raises(UsageError, match=rf"has a {name} that a run would overwrite.*--run-dir"):
            refuse(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert os.listdir(tmp_path) == [name]


def test_a_run_that_ended_before_it_had_a_manifest_may_be_tried_again(tmp_path):
    RunDirectory.create(tmp_path, "E-v0", "ppo", 0).config.write_text("begun")
    assert RunDirectory.create(tmp_path, "E-v0", "ppo", 0).path == tmp_path


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
    assert Run(run).metrics == []
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert Run(run).metrics == [{"step": 1}, {"step": 2}]


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
    with pytest.raises(UsageError, match=r"(?s)'20260101' matches 2 runs.*-s1.*-s2"):
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
        "name": None,
        "tags": [],
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
    with open(run.metrics, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 30, "episode_return": 60.0, "eval_return": 7.0}) + "\n")
    assert describe(run)["best"] == 7.0  # evaluations count, where there are any


def test_describe_of_a_damaged_run_does_not_fail(tmp_path):
    run = RunDirectory(add_run(tmp_path, "mine"))
    run.manifest.write_text('{"env": ')
    found = describe(run)
    assert (found["run"], found["state"]) == (str(run.path), "unreadable")
    assert "manifest.json is damaged" in found["why"]


def created(path, when):
    write_json(path / "manifest.json", {"env": "E-v0", "algo": "ppo", "seed": 0, "created": when})
    return path


def test_latest_is_the_run_that_was_started_last_whatever_happened_to_its_files(tmp_path):
    new = created(add_run(tmp_path, "a/new"), "2026-01-02T00:00:00+00:00")
    old = created(add_run(tmp_path, "z/old"), "2026-01-02T00:59:59+01:00")  # one second earlier
    os.utime(new / "manifest.json", (1e6, 1e6))
    (old / "status.json").write_text("{}")
    assert find_run("latest", tmp_path).path == new
    assert [run.path for run in list_runs(tmp_path)] == [old, new]


@pytest.mark.parametrize("when", ["9999-01-01T00:00:00+00:00", "soon", 5, None, [], "0001-01-01T00:00:00"])
def test_a_time_that_cannot_be_is_that_of_the_file(tmp_path, when):
    odd = created(add_run(tmp_path, "odd"), when)
    os.utime(odd / "manifest.json", (1e6, 1e6))
    wanted = created(add_run(tmp_path, "wanted"), "2020-01-02T00:00:00+00:00")
    assert find_run("latest", tmp_path).path == wanted


def test_runs_of_the_same_second_are_told_apart(here):
    from surefoot.runs.manifest import build_manifest

    for number in range(5):
        write_json(RunDirectory.create(f"runs/{9 - number}", "E-v0", "ppo", 0).manifest, build_manifest())
    assert [run.path.name for run in list_runs()] == ["9", "8", "7", "6", "5"]


def test_a_run_that_is_removed_while_runs_are_listed_is_left_out(tmp_path, monkeypatch):
    for number in range(5):
        add_run(tmp_path, f"runs/{number}")
    listed = list_runs(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "2")
    (tmp_path / "runs" / "3" / "manifest.json").unlink()  # one that is half gone
    assert [describe(run) is None for run in listed] == [False, False, True, True, False]
    scandir = os.scandir

    def removing(folder):
        if folder == tmp_path / "runs" / "1":
            monkeypatch.setattr(os, "scandir", scandir)
            shutil.rmtree(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", removing)
    assert [run.path.name for run in list_runs(tmp_path / "runs")] == ["0", "4"]


def test_nothing_inside_of_a_run_is_a_run(tmp_path):
    run = add_run(tmp_path, "mine")
    add_run(tmp_path, "mine/checkpoints/100")
    other = add_run(tmp_path, "mine/other")
    assert {run.path for run in list_runs(tmp_path)} == {run, other}


def unreadable(monkeypatch, below):
    """As for a user who may not look into this directory; root may look everywhere."""
    for name in ("stat", "open", "scandir", "listdir", "lstat"):
        real = getattr(os, name)

        def guarded(path, *arguments, real=real, **keywords):
            if isinstance(path, (str, os.PathLike)) and str(path).startswith(str(below)):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments, **keywords)

        monkeypatch.setattr(os, name, guarded)


def test_a_run_that_may_not_be_read_is_told(tmp_path, monkeypatch):
    closed = add_run(tmp_path, "runs/closed")
    add_run(tmp_path, "runs/open")
    run = RunDirectory(closed)
    unreadable(monkeypatch, closed)
    assert [found.path.name for found in list_runs(tmp_path / "runs")] == ["closed", "open"]
    assert find_run("latest", tmp_path / "runs").path.name == "open"
    with pytest.raises(CheckpointError, match=r"closed cannot be read: Permission denied"):
        find_run(closed, tmp_path)
    assert "Permission denied" in describe(run)["why"]
    catalog = Catalog(tmp_path / "runs")
    catalog.look()
    assert "Permission denied" in catalog.entries["closed"].why


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("status.json", b'{"state": 5}', "status.json.state is 5"),
        ("status.json", b'{"state": "done", "step": "x"}', "status.json.step is 'x'"),
        ("status.json", b'{"state": "done", "eval_return": [1]}', "status.json.eval_return"),
        ("status.json", b"\xff", "is damaged"),
        ("manifest.json", b'{"env": ["x"]}', "manifest.json.env"),
        ("manifest.json", b'{"seed": 1e400}', "manifest.json.seed"),
        ("metrics.jsonl", b'{"step": "x"}\n', "metrics.jsonl.step"),
        ("metrics.jsonl", b'{"episode_return": 5.0}\n', "step is missing"),
        ("metrics.jsonl", b'{"step": 1, "eval_return": "x"}\n', "eval_return"),
        ("metrics.jsonl", b"x" * 2**25, "has no end"),
    ],
)
def test_what_cannot_be_read_of_a_run_is_told(tmp_path, file, content, why):
    run = RunDirectory(add_run(tmp_path, "mine"))
    (run.path / file).write_bytes(content)
    assert why in describe(run)["why"]


@pytest.mark.parametrize("file", ["status.json", "metrics.jsonl", ".lock", "manifest.json"])
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_a_pipe_a_folder_or_a_loop_instead_of_a_file_neither_hangs_nor_fails(tmp_path, file, kind):
    run = RunDirectory(add_run(tmp_path, "mine"))
    run.set_status("running", step=1)
    (run.path / file).unlink(missing_ok=True)
    kind(str(run.path / file))
    assert describe(run)["state"] in ("unreadable", "running", "interrupted")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" * 3000, "\udcff", ""])
def test_a_name_that_no_file_can_have_is_no_run(tmp_path, name):
    add_run(tmp_path, "runs/mine")
    add_run(tmp_path, "runs/other")
    with pytest.raises(UsageError):
        find_run(name, tmp_path / "runs")


def test_names_that_are_not_utf8_are_found_and_described(tmp_path):
    path = tmp_path / os.fsdecode(b"runs/caf\xe9")
    add_run(path.parent, path.name)
    assert describe(list_runs(tmp_path)[0])["run"] == str(path)
    assert find_run(path.name, tmp_path / "runs").path == path


@pytest.mark.parametrize("name", ["plain", "a b", "it's", "caf\udce9", "\x1b[31m", "a\nb", "\\x", "-flag", "日本"])
def test_a_path_can_be_pasted_into_a_shell(tmp_path, name):
    (tmp_path / name).mkdir()
    shown = shell_path(name)
    assert shown.isprintable()
    done = subprocess.run(["bash", "-c", f"cd -- {shown} && ls -d ../*"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == os.fsencode(f"../{name}") + b"\n"


@pytest.mark.parametrize(
    "file", ["log.txt", "metrics.jsonl", ".lock", "status.json", "checkpoints", "checkpoints/LATEST"]
)
@pytest.mark.parametrize(
    "kind", [os.mkfifo, os.mkdir, lambda path: Path(path).write_text("", encoding="utf-8")], ids=["pipe", "dir", "file"]
)
def test_a_run_is_not_resumed_into_what_is_no_file_of_its_own(tmp_path, file, kind):
    run = RunDirectory.create(tmp_path, "E-v0", "ppo", 0)
    path = run.path / file
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    kind(str(path))
    if kind in (os.mkfifo, os.mkdir) if file != "checkpoints" else kind is not os.mkdir:
        with pytest.raises(CheckpointError, match=r"is not a (folder|plain file)"):
            run.refuse_links()
    else:
        run.refuse_links()
