"""A disk that fills up under a run: training continues, says so once, and catches up when there is room."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import surefoot
import surefoot.training.life.launch
from surefoot.cli.main import main
from tests.faults.disks import PAGE, empty, fill, own_mounts, possible, small_disk
from tests.faults.runs import TINY, cli, command, leftovers, newest, opened, same
from tests.helpers import episode_rows

DISK, WATCHED, RESCUED = Path("disk"), Path("watched.jsonl"), Path("rescued")
SIZE = 2**20
MODEL = Path(__file__).parents[1] / "fixtures" / "sb3" / "cnn.zip"


@pytest.fixture(autouse=True)
def _mounts(nursery):
    if nursery.run(possible).code:
        pytest.skip("a disk of one's own needs root or user namespaces")


class Ballast(surefoot.Callback):
    """Keeps the disk full from one update to another and notes, outside of it, what the run says meanwhile."""

    def __init__(self, full=(), leave=0, signal_at=None, log_room=None):
        self.full, self.leave, self.signal_at, self.log_room = range(*full), leave, signal_at, log_room

    def on_update(self, trainer, metrics):
        if trainer.update in self.full:
            trainer.saving.settle(trainer)  # what was begun before has the room that there was
            if self.log_room is not None and trainer.update == self.full.start:
                used = trainer.run.log.stat().st_size + 1
                trainer.run.note("-" * (-used % PAGE - self.log_room))
            fill(DISK, self.leave)
        elif (DISK / "ballast").exists():
            empty(DISK)
        if trainer.update == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        run = trainer.run
        rows = run.metrics.read_bytes() if run.metrics.exists() else b""
        self.note(update=trainer.update, state=run.read_status()["state"], rows=rows.decode())

    def on_warning(self, trainer, message):
        self.note(update=trainer.update, warning=message)

    def note(self, **facts):
        with open(WATCHED, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def watched(name):
    rows = [json.loads(line) for line in WATCHED.read_text(encoding="utf-8").splitlines()]
    return [(row["update"], row[name]) for row in rows if name in row]


class Wide(surefoot.Callback):
    """Rows so long that a page, which is what a full disk still takes into an open file, holds one of them."""

    def on_log(self, trainer, row, timing):
        row.update({f"number {index}": 1 / (trainer.step + index) for index in range(100)})


def on_a_small_disk(callback, work):
    """The disk is gone afterwards; its files are in RESCUED."""
    own_mounts()
    small_disk(DISK, SIZE)
    real = surefoot.training.life.launch._run

    def run(session, notes):
        session.callbacks = [*session.callbacks, callback]
        return real(session, notes)

    surefoot.training.life.launch._run = run
    try:
        return work()
    finally:
        shutil.copytree(DISK, RESCUED)


def train_on_a_small_disk(words, full_at_the_start=None, **ballast):
    """In a child: the command line, with a Ballast."""

    def work():
        if full_at_the_start is not None:
            fill(DISK, full_at_the_start)
        return main(words)

    return on_a_small_disk(Ballast(**ballast), work)


def train_wide_rows_on_a_small_disk(**ballast):
    """In a child."""
    on_a_small_disk(Ballast(**ballast), lambda: surefoot.train(**WIDE, run_dir=DISK / "run", callbacks=[Wide()]))


def whole_lines(text):
    return text == "" or text.endswith("\n")


def assert_good_end(whole):
    run = opened(RESCUED / "run")
    assert (run.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert episode_rows(run) == episode_rows(whole)
    assert run.directory.read_status()["state"] == "done"
    assert newest(run).name == newest(whole).name
    assert (newest(run) / "policy.safetensors").read_bytes() == (newest(whole) / "policy.safetensors").read_bytes()
    assert leftovers(run.path) == []
    return run


HERE = "disk/run"
WIDE = {**TINY, "log_every": 32}
LATE = {**TINY, "checkpoint_every": 960, "eval_every": None}


def test_a_checkpoint_that_finds_no_room_is_a_warning_and_comes_later(nursery, whole):
    """From the first checkpoint (step 160) to step 960; there is room for the small files."""
    nursery.run(train_on_a_small_disk, words=command(HERE), full=(6, 30), leave=4 * PAGE).ended(0)
    warnings = watched("warning")
    assert len(warnings) == 2, warnings
    (first, said), (last, over) = warnings
    assert "checkpoint of step 320 could not be written" in said
    assert "No space left on device" in said
    assert "bytes are needed" in said
    assert "are free; that of step 160 stands" in said
    assert over == "checkpoint written again, at step 960"
    states = dict(watched("state"))
    assert all(state == ("degraded" if first < update <= last else "running") for update, state in states.items())
    run = assert_good_end(whole)
    same(run, whole)
    for line in (said, over):
        assert line in run.directory.log.read_text()


@pytest.mark.slow
def test_rows_that_find_no_room_are_written_later_in_order_and_none_is_torn(nursery, tmp_path):
    """Not one byte is free for half of the run; also what cannot be said then is said afterwards."""
    whole = surefoot.train(**WIDE, run_dir=tmp_path / "whole", callbacks=[Wide()])
    nursery.run(train_wide_rows_on_a_small_disk, full=(8, 38)).ended(0)
    rows, all_rows = watched("rows"), (whole.path / "metrics.jsonl").read_text()
    assert all(whole_lines(text) and all_rows.startswith(text) for _, text in rows)
    assert len(dict(rows)[37].splitlines()) < 20  # of 37
    warnings = [text for _, text in watched("warning")]
    assert len([text for text in warnings if "metrics could not be written" in text]) == 1
    assert len([text for text in warnings if "checkpoint" in text and "could not be" in text]) <= 1
    assert len(warnings) == 2 * len([text for text in warnings if "written again" in text])
    run = assert_good_end(whole)
    log = run.directory.log.read_text()
    assert whole_lines(log)
    assert [text for text in warnings if text not in log] == []


@pytest.mark.slow
def test_a_warning_that_finds_no_room_in_the_log_comes_later_and_is_not_torn(nursery, whole):
    nursery.run(train_on_a_small_disk, words=command(HERE), full=(6, 30), log_room=30).ended(0)
    warnings = [text for _, text in watched("warning")]
    assert any("could not be written" in text for text in warnings)
    lines = assert_good_end(whole).directory.log.read_text().splitlines()
    assert [text for text in warnings if not any(line.endswith(f": {text}") for line in lines)] == []
    assert all(line.startswith(("step ", "ppo on ", "engine ", "run ", "---")) for line in lines), lines


def test_spare_checkpoints_make_room_for_the_new_one(nursery, whole):
    """Three checkpoints, no room for a fourth: the older ones go, the newest never does, and no row is late."""
    nursery.run(train_on_a_small_disk, words=command(HERE), full=(31, 38), leave=2 * PAGE).ended(0)
    assert watched("warning") == []
    run = assert_good_end(whole)
    same(run, whole)


@pytest.mark.slow
def test_a_video_that_finds_no_room_is_a_warning_and_training_goes_on(nursery, whole):
    words = command(HERE, video_every=400, eval_max_steps=500)
    nursery.run(train_on_a_small_disk, words=words, full=(6, 27)).ended(0)
    warnings = [text for _, text in watched("warning") if "mp4" in text or "video" in text]
    assert len(warnings) == 2, warnings
    assert "416.mp4" in warnings[0]
    assert "No space left on device" in warnings[0] or "bytes are free" in warnings[0], warnings[0]
    assert "video written again" in warnings[1]
    run = assert_good_end(whole)
    assert sorted(file.name for file in run.directory.videos.iterdir()) == ["1216.mp4", "1600.mp4"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pages", range(8))
def test_a_disk_that_is_full_at_the_start_is_said_before_any_work(nursery, whole, pages):
    """No page free, one, two, …: the directory, the log, the lock, the settings, the manifest or the rows fail."""
    child = nursery.run(train_on_a_small_disk, words=command(HERE), full_at_the_start=pages * PAGE, full=(0, 100))
    assert "Traceback" not in child.err
    assert "No space left on device" in child.err + child.out
    if child.code == 2:
        assert "cannot write the run directory disk/run" in child.err
        assert not (RESCUED / "run" / "metrics.jsonl").exists()
    else:  # it did start; there never was a checkpoint
        child.ended(1)
        assert "is not saved" in child.err
    assert leftovers(RESCUED) == []


@pytest.mark.slow
def test_a_run_whose_last_checkpoint_finds_no_room_fails_and_the_older_one_goes_on(nursery, tmp_path):
    words = command(HERE, **LATE)
    child = nursery.run(train_on_a_small_disk, words=words, full=(31, 100), leave=4 * PAGE).ended(1)
    said = child.err.splitlines()[0]
    assert "the end of the run is not saved: the checkpoint of step 1,600 could not be written" in said
    assert "No space left on device" in said
    assert "bytes are needed" in said
    assert said.endswith("that of step 960 stands")
    run = opened(RESCUED / "run")
    assert run.directory.read_status()["state"] == "failed"
    assert newest(run).name == "960"
    surefoot.load(run)
    nursery.run(cli, words=["resume", str(run.path)]).ended(0)
    whole = surefoot.train(**LATE, run_dir=tmp_path / "whole")
    assert (run.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert run.result["eval"] == whole.result["eval"]


def import_on_a_small_disk():
    own_mounts()
    small_disk(DISK, SIZE)
    fill(DISK, leave=8 * PAGE)
    code = main(["import-sb3", str(MODEL), "--run-dir", str(DISK / "run")])
    print(sorted(os.listdir(DISK)))
    return code


def test_a_model_that_finds_no_room_is_not_imported_and_nothing_is_left_of_it(nursery):
    child = nursery.run(import_on_a_small_disk).ended(1)
    assert len(child.err.splitlines()) == 1
    assert "cnn.zip was not imported, and nothing is left of the attempt: " in child.err
    assert "No space left on device" in child.err
    assert "Training continues" not in child.err
    assert child.out.splitlines() == ["['ballast']"]


def test_a_term_on_a_full_disk_leaves_the_last_checkpoint_which_goes_on_exactly(nursery, whole):
    child = nursery.run(train_on_a_small_disk, words=command(HERE), full=(6, 100), signal_at=20).ended(143)
    assert "saved up to 160" in child.err
    assert child.err.splitlines()[-1] == "surefoot resume disk/run"
    run = opened(RESCUED / "run")
    nursery.run(cli, words=["resume", str(run.path)]).ended(0)
    same(run, whole)


class DieWithRowsInMemory(Ballast):
    """Killed right after a checkpoint that could be written (its spares made room) while the rows could not."""

    def on_update(self, trainer, metrics):
        super().on_update(trainer, metrics)
        if trainer.saved_step > 32 * self.full.start:
            shutil.copytree(DISK, RESCUED)
            os.kill(os.getpid(), signal.SIGKILL)


def die_with_rows_in_memory():
    """In a child."""
    dying = DieWithRowsInMemory(full=(31, 100))
    on_a_small_disk(dying, lambda: surefoot.train(**WIDE, run_dir=DISK / "run", callbacks=[Wide()]))


@pytest.mark.slow
def test_rows_in_memory_when_a_checkpoint_is_written_are_not_lost_by_a_kill(nursery, tmp_path):
    nursery.run(die_with_rows_in_memory).ended(-signal.SIGKILL)
    run = opened(RESCUED / "run")
    assert json.loads((newest(run) / "state.json").read_text())["logs"]["unwritten"]["metrics.jsonl"]
    surefoot.resume(run, progress=False, callbacks=[Wide()])
    same(run, surefoot.train(**WIDE, run_dir=tmp_path / "whole", callbacks=[Wide()]))
