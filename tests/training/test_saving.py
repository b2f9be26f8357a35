"""Checkpoints beside the training: taken between updates, written by a thread, one at a time, waited for at the end."""

import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

import surefoot
from surefoot.runs.checkpoints import find_checkpoint, steps_of
from surefoot.runs.files import AppendedFile
from surefoot.training.loop import saving, writing
from surefoot.training.loop.saving import Saving

SHORT = {"preset": "none", "seed": 3, "total_steps": 640, "num_envs": 4, "rollout_length": 16, "num_minibatches": 1}
SHORT |= {"log_every": 128, "checkpoint_every": 64, "eval_episodes": 0, "progress": False}


class Disk:
    """Keeps the first checkpoint waiting until it is `ready`; remembers who wrote what, and when.

    `seconds`: how long each one takes at least.
    """

    def __init__(self, monkeypatch, error=None, seconds=0.0):
        self.ready, self.begun, self.written, self.threads = threading.Event(), [], [], []
        self.real, self.error, self.seconds = writing.write_checkpoint, error, seconds
        monkeypatch.setattr(writing, "write_checkpoint", self.write)

    def write(self, root, step, *what, **how):
        self.begun.append(step)
        self.threads.append(threading.current_thread())
        assert self.ready.wait(30)
        time.sleep(self.seconds)
        if self.error is not None and len(self.begun) == 1:
            raise self.error
        found = self.real(root, step, *what, **how)
        self.written.append(step)
        return found


class At(surefoot.Callback):
    """Does something after one update, and keeps what the run looks like after each."""

    def __init__(self, update, action):
        self.update, self.action, self.saved = update, action, {}

    def on_update(self, trainer, metrics):
        self.saved[trainer.update] = trainer.saved_step
        if trainer.update == self.update:
            self.action()


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_ones_are_put_off(monkeypatch):
    monkeypatch.setattr(Saving, "patient", False)
    disk = Disk(monkeypatch)
    at = At(6, disk.ready.set)
    run = surefoot.train("CartPole-v1", **SHORT, callbacks=[at])
    assert disk.begun[0] == 64
    assert not set(disk.begun) & {128, 192, 256, 320}
    assert all(at.saved[update] == -1 for update in range(1, 7))  # it is saved when it is on the disk
    assert disk.begun == disk.written
    assert disk.begun[-1] == 640
    assert threading.main_thread() not in disk.threads
    assert find_checkpoint(run.directory.checkpoints)[0].name == "640"


def test_a_disk_that_is_fast_enough_gets_every_one(monkeypatch):
    disk = Disk(monkeypatch)
    disk.ready.set()
    run = surefoot.train("CartPole-v1", **SHORT)
    assert disk.written == list(range(64, 641, 64))
    assert [path.name for path in steps_of(run.directory.checkpoints)] == ["512", "576", "640"]


def test_a_refusal_is_heard_later_and_the_end_of_the_run_is_saved(monkeypatch):
    disk = Disk(monkeypatch, OSError(28, "No space left on device"))
    run = surefoot.train("CartPole-v1", **SHORT | {"checkpoint_every": 320}, callbacks=[At(7, disk.ready.set)])
    assert disk.written == [640]
    log = run.directory.log.read_text()
    assert log.count("the checkpoint of step 320 could not be written") == 1
    assert "No space left on device; there is none yet" in log
    assert "checkpoint written again, at step 640" in log
    assert run.directory.read_status()["state"] == "done"


def test_a_run_that_stops_by_itself_after_a_refusal_tries_once_more(monkeypatch):
    """Nothing has happened since the checkpoint was taken, but it is not on the disk."""
    disk = Disk(monkeypatch, OSError(28, "No space left on device"))
    disk.ready.set()

    class Stop(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.step == 128:
                trainer.suspend("enough")

    run = surefoot.train("CartPole-v1", **SHORT | {"checkpoint_every": 128}, callbacks=[Stop()])
    assert disk.begun == [128, 128]
    assert find_checkpoint(run.directory.checkpoints)[0].name == "128"


def test_an_error_of_ours_in_the_thread_ends_the_run(monkeypatch):
    disk = Disk(monkeypatch, ZeroDivisionError("a bug"))
    disk.ready.set()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        surefoot.train("CartPole-v1", **SHORT)


def test_without_a_thread_checkpoints_are_written_all_the_same(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    disk = Disk(monkeypatch)
    disk.ready.set()
    monkeypatch.setattr(threading.Thread, "start", start)
    surefoot.train("CartPole-v1", **SHORT)
    assert disk.written == list(range(64, 641, 64))
    assert set(disk.threads) == {threading.main_thread()}


@pytest.mark.slow
def test_the_thread_holds_nothing_of_the_run(monkeypatch):
    """Else a disk that does not answer would keep a trainer alive until the interpreter ends, and abort it there."""
    monkeypatch.setattr(Saving, "patient", False)
    disk, found = Disk(monkeypatch), []

    class Leave(surefoot.Callback):
        def on_update(self, trainer, metrics):
            found.append(weakref.ref(trainer))
            if trainer.update == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", run_dir="run", **SHORT, callbacks=[Leave()])
    try:
        (thread,) = [each for each in threading.enumerate() if each.name == "surefoot-checkpoint"]
        gc.collect()
        assert found[0]() is None
        assert surefoot.runs.RunDirectory(Path("run")).is_locked()  # as long as somebody writes to it
    finally:
        disk.ready.set()
    thread.join(30)


def test_the_rows_that_a_checkpoint_knows_of_are_on_the_disk_before_it(monkeypatch):
    """After a power failure, too: a log that is shorter than its checkpoint says cannot be resumed."""
    order, real = [], writing.os.fsync

    def fsync(handle):
        order.append(Path(f"/proc/self/fd/{handle}").resolve().name)
        real(handle)

    monkeypatch.setattr(writing.os, "fsync", fsync)
    surefoot.train("CartPole-v1", **SHORT | {"checkpoint_every": 640})
    assert order.index("metrics.jsonl") < order.index("policy.safetensors")
    assert order.index("timings.jsonl") < order.index("policy.safetensors")
    assert order.index("episodes.csv") < order.index("policy.safetensors")


def test_the_size_of_an_appended_file_is_right_after_a_rename(tmp_path):
    file = AppendedFile(tmp_path / "a")
    assert file.size == 0
    file.append(b"12345")
    (tmp_path / "a").rename(tmp_path / "b")
    assert file.size == 5
    file.close()
    assert file.size == 0  # of the file that is there under its name


@pytest.mark.parametrize("every", [64, None])
def test_saving_that_takes_much_of_the_time_is_said_once_with_the_flag(monkeypatch, every):
    monkeypatch.setattr(saving, "WATCHED_SECONDS", 0.0)
    monkeypatch.setattr(saving, "TOO_MUCH", 0.0)
    monkeypatch.setattr(saving, "CHECKPOINT_SECONDS", 0.0)
    run = surefoot.train("CartPole-v1", **SHORT | {"checkpoint_every": every})
    (line,) = [line for line in run.directory.log.read_text().splitlines() if "of the time" in line]
    assert "give --checkpoint-every a larger number" in line
    assert ("every 64 steps" in line) == (every is not None)


@pytest.mark.slow
def test_a_short_run_that_mostly_saved_is_told_so_at_its_end(monkeypatch):
    """With the limits as they are: 1.5 s of a disk that takes 50 ms per checkpoint."""
    disk = Disk(monkeypatch, seconds=0.05)
    disk.ready.set()
    run = surefoot.train("CartPole-v1", **SHORT | {"total_steps": 64 * 30})
    (line,) = [line for line in run.directory.log.read_text().splitlines() if "of the time" in line]
    assert line.startswith("step 1920: saving a checkpoint every 64 steps takes")


def test_saving_that_takes_little_of_the_time_is_not_worth_a_word(monkeypatch):
    monkeypatch.setattr(saving, "WATCHED_SECONDS", 0.0)
    monkeypatch.setattr(saving, "TOO_MUCH", 1.0)
    run = surefoot.train("CartPole-v1", **SHORT)
    assert "of the time" not in run.directory.log.read_text()
