"""Copies of run directories: always resumable, and equal to the original in the end."""

import os
import random
from pathlib import Path

import pytest

from surefoot.errors import SurefootError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import write_checkpoint
from surefoot.runs.files import write_atomic
from surefoot.sweep import live_copy
from surefoot.sweep.live_copy import Change, Changes, find_changes, write_changes


@pytest.fixture
def run():
    directory = RunDirectory(Path("run"))
    directory.checkpoints.mkdir(parents=True)
    for name in ("config.toml", "manifest.json", "status.json"):
        write_atomic(directory.path / name, f"first {name}")
    (directory.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    return directory


def content(folder):
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def follow(run, copy, marks):
    changes = find_changes(run, marks)
    write_changes(copy, changes)
    return changes


def test_a_log_that_has_grown_sends_only_its_new_rows_and_one_that_was_cut_is_sent_whole(run):
    copy, log = RunDirectory(Path("copy")), run.metrics
    first = follow(run, copy, {})
    assert content("copy") == content("run")
    with open(log, "ab") as file:
        file.write(b'{"step": 2}\n')
    second = follow(run, copy, first.marks)
    assert second.files == (Change("metrics.jsonl", 12, b'{"step": 2}\n'),)
    assert follow(run, copy, second.marks).files == ()
    log.write_bytes(b'{"step": 1}\n{"step": 7}\n{"step": 8}\n')  # a resume cut the second row, and wrote two others
    third = follow(run, copy, second.marks)
    assert third.files[0].offset == 0
    os.truncate(log, 12)
    assert follow(run, copy, third.marks).files[0].data == b'{"step": 1}\n'
    assert content("copy") == content("run")


def test_a_copy_is_known_as_a_run_first_and_as_done_last(run, monkeypatch):
    write_checkpoint(run.checkpoints, 500, {"policy": b"x"}, {}, best=True)
    order = []
    monkeypatch.setattr(live_copy, "_write", lambda root, change, durable: order.append(change.name))
    monkeypatch.setattr(live_copy, "_write_checkpoint", lambda target, files: order.append(target.name))
    follow(run, RunDirectory(Path("copy")), {})
    assert order[:2] == ["config.toml", "manifest.json"]
    assert order[-4:] == ["500", "checkpoints/LATEST", "checkpoints/BEST", "status.json"]


def test_a_pointer_to_a_checkpoint_that_is_not_copied_yet_waits_for_it(run):
    write_checkpoint(run.checkpoints, 500, {"policy": b"x"}, {})
    first = find_changes(run, {})
    write_atomic(run.checkpoints / "LATEST", "1000\n")  # written after the folders were listed
    second = find_changes(run, first.marks)
    assert second.pointers == ()
    assert "checkpoints/LATEST" not in second.gone
    write_checkpoint(run.checkpoints, 1000, {"policy": b"y"}, {})
    assert [change.data for change in find_changes(run, second.marks).pointers] == [b"1000\n"]


def test_a_checkpoint_that_a_resume_wrote_again_replaces_the_copy(run):
    copy = RunDirectory(Path("copy"))
    write_checkpoint(run.checkpoints, 500, {"policy": b"old"}, {})
    marks = follow(run, copy, {}).marks
    write_checkpoint(run.checkpoints, 500, {"policy": b"new"}, {})
    follow(run, copy, marks)
    assert (copy.checkpoints / "500" / "policy").read_bytes() == b"new"


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_events_ends_in_the_same_content(run, seed):
    copy, draw = RunDirectory(Path("copy")), random.Random(seed)
    marks = follow(run, copy, {}).marks
    for step in range(1, 40):
        event = draw.choice(("row", "row", "cut", "save", "status", "event", "look", "look twice"))
        if event in ("row", "event"):
            name = "metrics.jsonl" if event == "row" else "tensorboard/events.out.tfevents.1"
            (run.path / name).parent.mkdir(exist_ok=True)
            with open(run.path / name, "ab") as file:
                file.write(f'{{"step": {step}, "x": {draw.random()}}}\n'.encode() * draw.choice((1, 3000)))
        elif event == "cut":
            os.truncate(run.metrics, run.metrics.stat().st_size // 2)
        elif event == "save":
            write_checkpoint(run.checkpoints, step, {"policy": draw.randbytes(50)}, {}, best=draw.random() < 0.3)
        elif event == "status":
            write_atomic(run.status, f"{step}")
        else:
            changes = follow(run, copy, marks)
            marks = marks if event == "look twice" else changes.marks  # as if the sweep could not write all of it
    (run.path / "config.toml").unlink()
    follow(run, copy, marks)
    assert content("copy") == content("run")


def test_links_are_not_followed_and_nothing_is_written_outside(run):
    Path("secret").write_text("mine", encoding="utf-8")
    (run.path / "link.txt").symlink_to(Path("secret").absolute())
    changes = find_changes(run, {})
    assert "link.txt" not in changes.marks
    for name in ("../outside.txt", "/tmp/outside.txt"):
        bad = Changes((Change(name, 0, b"x"),), {}, (), (), (), {})
        with pytest.raises(SurefootError, match="outside of its run"):
            write_changes(RunDirectory(Path("copy")), bad)
    assert not Path("outside.txt").exists()
