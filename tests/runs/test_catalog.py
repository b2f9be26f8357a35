"""Many runs, listed at a cost that follows what is new; and whether each of them is still going on."""

import itertools
import json
import os
import shutil
import socket
import time
from math import isnan

import pytest

from benchmarks.many_runs import write_rows, write_run
from surefoot.runs import Catalog, Run, RunDirectory
from surefoot.runs.columns import columns_of, names_in, open_log
from surefoot.runs.life import SILENT, read_life


def age(path, seconds=10):
    """Make a run's files older, so that their time stamps count."""
    then = time.time() - seconds
    for file in (*path.rglob("*"), path):
        os.utime(file, (then, then))


@pytest.fixture
def root(tmp_path):
    for number in (0, 1, 10):
        write_run(tmp_path / "runs" / f"r{number}", number=number, rows=20)
    for folder in (*(tmp_path / "runs").iterdir(), tmp_path / "runs"):
        age(folder)
    return tmp_path / "runs"


def test_the_list_has_the_newest_first_and_groups_seeds(root):
    catalog = Catalog(root)
    assert catalog.look() == {"r0", "r1", "r10"}
    assert list(catalog.entries) == ["r10", "r1", "r0"]
    assert catalog.latest() == "r10"
    first, second, other = (catalog.entries[name] for name in ("r0", "r1", "r10"))
    assert first.group == second.group != other.group  # another seed; another algorithm
    assert (first.env, first.algo, first.seed, first.step, first.total_steps) == ("CartPole-v1", "a2c", 0, 10240, 10240)
    rows = Run(root / "r0").metrics
    assert (first.episode_return, first.eval_return) == (rows[-1]["episode_return"], rows[-1]["eval_return"])
    assert (first.state, first.why) == ("finished", None)


def test_a_second_look_reads_nothing_again(root, monkeypatch):
    catalog = Catalog(root)
    catalog.look()
    for name in ("read_json", "read_regular", "open_log"):
        monkeypatch.setattr(f"surefoot.runs.catalog.{name}", lambda *_: pytest.fail("nothing is new"))
    monkeypatch.setattr("os.scandir", lambda *_: pytest.fail("no folder changed"))
    assert catalog.look() == set()


def test_what_is_new_is_seen(root):
    catalog = Catalog(root)
    catalog.look()
    write_run(root / "deep" / "er" / "r2", number=2, rows=5)
    assert catalog.look() == {"deep/er/r2"}
    shutil.rmtree(root / "r0")
    assert catalog.look() == {"r0"}
    run = RunDirectory(root / "r1")
    run.lock()
    run.set_status("running", step=1)  # resumed
    assert catalog.look() == {"r1"}
    assert catalog.entries["r1"].state == "running"
    with open(run.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 99999, "episode_return": 7.0}\n{"step": 100000, "episode_ret')
        file.flush()
        assert catalog.look() == {"r1"}
    assert (catalog.entries["r1"].step, catalog.entries["r1"].episode_return) == (99999, 7.0)
    write_rows(run.metrics, 3)  # a resume cuts the log back
    run.set_status("running", step=1)
    catalog.look()
    assert catalog.entries["r1"].step == 3 * 512
    run.unlock()


def test_what_cannot_be_read_says_why(root):
    (root / "r0" / "manifest.json").write_text("{", encoding="utf-8")
    manifest = json.loads((root / "r1" / "manifest.json").read_text())
    (root / "r1" / "manifest.json").write_text(json.dumps({**manifest, "schema": 7}), encoding="utf-8")
    (root / "r10" / "metrics.jsonl").unlink()
    (root / "r10" / "metrics.jsonl").symlink_to("/etc/passwd")
    catalog = Catalog(root)
    catalog.look()
    assert "damaged" in catalog.entries["r0"].why
    assert "newer surefoot (schema 7)" in catalog.entries["r1"].why
    assert catalog.entries["r1"].step == 10240  # what can be read is shown
    assert "is a link" in catalog.entries["r10"].why


def test_links_lead_to_no_runs_and_no_root_is_no_error(root, tmp_path):
    (root / "link").symlink_to(root / "r0")
    assert len(Catalog(root).look()) == 3
    assert Catalog(tmp_path / "nowhere").look() == set()


class TestLife:
    @pytest.fixture
    def run(self, tmp_path):
        write_run(tmp_path / "one", rows=2, state="running")
        return RunDirectory(tmp_path / "one")

    @pytest.mark.parametrize(
        ("said", "state"), [("done", "finished"), ("interrupted", "stopped"), ("failed", "crashed"), ("odd", "unknown")]
    )
    def test_what_is_over(self, run, said, state):
        run.set_status(said)
        assert read_life(run).state == state
        assert not Run(run).status["alive"]

    def test_a_process_that_holds_it_runs_it_however_silent(self, run):
        run.lock()
        age(run.path, 10 * SILENT)
        life = read_life(RunDirectory(run.path))
        assert (life.state, Run(run.path).status["life"]) == ("running", "running")
        assert time.time() - life.heartbeat > 9 * SILENT
        run.unlock()

    def test_a_killed_one_of_this_machine_has_crashed(self, run):
        (run.path / ".lock").write_text(f"pid 1 on {socket.gethostname()}")
        assert read_life(run).state == "crashed"

    def test_one_on_another_machine_runs_as_long_as_it_writes(self, run):
        (run.path / ".lock").write_text("pid 1 on far-away")
        assert read_life(run).state == "running"
        age(run.path, SILENT + 60)
        assert read_life(run).state == "unknown"

    def test_a_lock_that_cannot_be_looked_at_keeps_no_run_alive_for_ever(self, run):
        (run.path / ".lock").mkdir()
        assert run.is_locked()  # it may be: nobody else takes it
        age(run.path, SILENT + 60)
        assert read_life(run).state == "unknown"

    def test_a_clock_that_is_ahead_makes_no_heartbeat_in_the_future(self, run):
        age(run.path, -1e6)
        assert read_life(run).heartbeat <= time.time()


class TestColumns:
    def test_columns_are_those_of_the_rows(self, tmp_path):
        write_rows(tmp_path / "m", 100)
        lines = (tmp_path / "m").read_bytes()
        rows = [json.loads(line) for line in lines.splitlines()]
        found = columns_of(lines, ["step", "kl", "eval_return", "nothing"])
        assert found["step"] == [row["step"] for row in rows]
        assert found["kl"] == [row["kl"] for row in rows]
        for value, row in zip(found["eval_return"], rows, strict=True):
            assert isnan(value) if "eval_return" not in row else value == row["eval_return"]
        assert all(map(isnan, found["nothing"]))
        assert names_in(lines) == [*rows[0], "eval_return"]

    @pytest.mark.parametrize(
        "line",
        [
            rb'{"x\"step": 1, "step": 2}',
            b'{"a": {"step": 1}, "step": 2}',
            b'{"step":2}',
            b'{"other": "step", "step": 2}',
            b'{"step": 2.0}',
        ],
    )
    def test_rows_of_another_writer_are_decoded(self, line):
        assert columns_of(line + b"\n" + b'{"step": 3}\n', ["step"]) == {"step": [2.0, 3.0]}

    @pytest.mark.parametrize("line", [b"", b"garbage", b"[1]", b'{"step": "x"}', b'{"step": null}', b'{"step": 1, '])
    def test_a_damaged_row_has_no_values(self, line):
        first, second = columns_of(line + b"\n" + b'{"step": 3}\n', ["step"])["step"]
        assert isnan(first)
        assert second == 3

    def test_a_row_is_found_by_its_step_and_a_sample_spans_the_file(self, tmp_path):
        write_rows(tmp_path / "m", 5000)
        with open(tmp_path / "m", "ab") as file:
            file.write(b'{"step": 99')  # torn
        with open_log(tmp_path / "m") as log:
            for step in (-5, 512, 513, 700 * 512, 5000 * 512):
                row = json.loads(log.line_at(log.find("step", step))[1])
                assert row["step"] == max(512, -(-step // 512) * 512)
            assert log.find("step", 5000 * 512 + 1) == log.size
            steps = columns_of(log.sample(0, log.size, 100), ["step"])["step"]
            assert (steps[0], steps[-1]) == (512, 5000 * 512)
            assert steps == sorted(steps)
            assert 100 < len(steps) < 400
            assert max(b - a for a, b in itertools.pairwise(steps)) < 5000 * 512 / 50

    def test_no_log_a_link_and_a_pipe(self, tmp_path):
        (tmp_path / "link").symlink_to("/etc/passwd")
        os.mkfifo(tmp_path / "pipe")
        for name in ("nothing", "link", "pipe"):
            with open_log(tmp_path / name) as log:
                assert log is None
