"""kill −9, at every point of a save and at random: the run goes on to the bytes of an undisturbed one."""

import os
import random
import signal
import threading
import time
from itertools import count

import pytest

import surefoot
import surefoot.runs.files
from surefoot.cli.main import main
from surefoot.runs.checkpoints import find_checkpoint, pointed
from surefoot.training.loop import writing
from surefoot.training.trainer import Trainer
from tests.faults.runs import TINY, cli, command, copy, go_on, newest, opened, same
from tests.faults.test_signals import LEARNS
from tests.marks import quick

PARTS = 4  # of the points of a save, so that all cores have something to do


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class TornFile:
    """A file that can be killed with half of what it was given on the disk."""

    def __init__(self, file, point):
        self._file, self._point = file, point

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        if self._point():
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            die()
        return self._file.write(data)


def kill_before_operation(number, counts=lambda: True):
    """Die before the `number`-th operation that touches the disk, or in the middle of it if it writes.

    `counts`: whether an operation is one of those.
    """
    numbers = count()

    def is_now():
        return counts() and next(numbers) == number

    def wrap(real):
        def call(*args, **kwargs):
            if is_now():
                die()
            return real(*args, **kwargs)

        return call

    for name in ("mkdir", "open", "write", "fsync", "replace", "unlink", "rmdir", "ftruncate"):
        setattr(os, name, wrap(getattr(os, name)))
    surefoot.runs.files.open = lambda *args, **kwargs: TornFile(wrap(open)(*args, **kwargs), is_now)


def die_in_the_save_of_the_best(path, number):
    """In a child: resume, and be killed at one point of the save that moves LATEST and BEST and prunes."""
    real = Trainer.save

    def save(trainer, *, best=False, **how):
        if best:
            kill_before_operation(number)
        done = real(trainer, best=best, **how)
        if best:
            os._exit(0)  # this save has no such point any more
        return done

    Trainer.save = save
    surefoot.resume(path, progress=False)


def die_before_the_best(run_dir, step):
    """In a child: train until the update before the best policy, and be killed there."""

    class Die(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.step + rollout.num_steps >= step:
                assert trainer.saving.settle(trainer)  # the checkpoint before is on the disk
                die()

    surefoot.train(**TINY, run_dir=run_dir, callbacks=[Die()])


@pytest.mark.slow
@pytest.mark.parametrize("part", quick(range(PARTS), 0))
def test_a_kill_at_any_point_of_a_save_leaves_a_run_that_loads_and_goes_on(nursery, whole, tmp_path, part):
    best = whole.result["best"]["step"]
    nursery.run(die_before_the_best, run_dir=tmp_path / "base", step=best).ended(-signal.SIGKILL)
    base = opened(tmp_path / "base")
    before, left_at = int(newest(base).name), set()
    assert before < best
    for number in count(part, PARTS):
        run = copy(base, tmp_path / f"{number}")
        child = nursery.run(die_in_the_save_of_the_best, path=run.path, number=number)
        if child.code == 0:
            break
        child.ended(-signal.SIGKILL)
        folder, _ = find_checkpoint(run.path / "checkpoints")
        left_at.add(int(folder.name))
        surefoot.load(run)
        resumed = surefoot.resume(run, progress=False)
        same(resumed, whole)
    assert number > 40, "a save has more points than that"
    assert left_at == {before, best}


def train_until(run_dir, step):
    """In a child: train until this step, with the checkpoint before it on the disk, and be killed."""
    die_before_the_best(run_dir, step)


def die_while_the_training_goes_on(path, step, number):
    """In a child: resume, and be killed at one point of the save of this step, by the thread that writes it."""
    real, here = writing.write_checkpoint, threading.local()

    def write(root, at, *what, **how):
        here.counts = at == step
        return real(root, at, *what, **how)

    writing.write_checkpoint = write
    kill_before_operation(number, lambda: getattr(here, "counts", False))
    surefoot.resume(path, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_any_point_of_a_save_beside_the_training_leaves_a_run_that_goes_on(nursery, whole, tmp_path, part):
    """Of step 480, which no evaluation waits for: the training is some updates ahead of it."""
    nursery.run(train_until, run_dir=tmp_path / "base", step=480).ended(-signal.SIGKILL)
    base = opened(tmp_path / "base")
    assert newest(base).name == "320"
    left_at = set()
    for number in count(part, PARTS):
        run = copy(base, tmp_path / f"{number}")
        child = nursery.run(die_while_the_training_goes_on, path=run.path, step=480, number=number)
        if child.code == 0:
            break
        child.ended(-signal.SIGKILL)
        folder, _ = find_checkpoint(run.path / "checkpoints")
        left_at.add(int(folder.name))
        surefoot.load(run)
        same(surefoot.resume(run, progress=False), whole)
    assert number > 25, "a save has more points than that"
    assert {320} <= left_at <= {320, 480}  # the last points of a save may all be in another part


@pytest.mark.slow
def test_fifty_random_kills_change_no_byte_of_a_run(nursery, whole, tmp_path):
    """A kill may hit the start of a process, an update, an evaluation, a save."""
    path, kills, wanted, found_at = tmp_path / "killed", 0, 60, set()
    dice, longest, child = random.Random(0), 0.15, None
    while child is None or child.code == -signal.SIGKILL:
        started, reached = (path / "manifest.json").exists(), step_of(path)
        child = nursery.start(go_on, path=path) if started else nursery.start(cli, words=command(path))
        found_at.add(reached)
        if kills < wanted:
            # Ahead of the plan a process dies young, so that something of the run is left for all the kills.
            ahead = reached / TINY["total_steps"] > kills / wanted
            end = time.monotonic() + dice.uniform(0.0, 0.04 if ahead else longest)
            while time.monotonic() < end and step_of(path) <= reached + TINY["checkpoint_every"]:
                time.sleep(0.002)
            if not ahead and step_of(path) == reached:
                longest *= 1.15  # on a busy machine a process needs longer to come to anything
            child.send(signal.SIGKILL)
        kills += child.wait().code == -signal.SIGKILL
    child.ended(0)
    assert kills >= 50
    assert len(found_at) > 5
    same(opened(path), whole)
    assert opened(path).directory.read_status()["state"] == "done"


def step_of(path):
    """Of the latest checkpoint."""
    found = pointed(path / "checkpoints", "LATEST")
    return int(found.name) if found else 0


def test_what_a_killed_writer_left_is_gone_after_the_next_start(whole, tmp_path):
    """Also if that one has nothing to save."""
    run = copy(whole, tmp_path / "run")
    checkpoints = run.path / "checkpoints"
    for file in (run.path / ".tmp-status.json-1", checkpoints / ".tmp-LATEST-1", checkpoints / ".tmp-BEST-1"):
        file.write_text("1")
    (checkpoints / ".tmp-1600-1").mkdir()
    (checkpoints / ".tmp-1600-1" / "state.json").write_text("{")
    same(surefoot.resume(run, progress=False), whole)


def slowly(words):
    """In a child: the command line; its 50 updates take two seconds at least, so that signals find it at work."""
    for owner, name in LEARNS:
        setattr(owner, name, delayed(getattr(owner, name)))
    return main(words)


def delayed(real):
    def call(*args, **kwargs):
        time.sleep(0.04)
        return real(*args, **kwargs)

    return call


@pytest.mark.slow
def test_random_terms_and_interrupts_change_no_byte_of_a_run(nursery, whole, tmp_path):
    """As on a cluster that moves a job about: each process saves and leaves, the next one goes on."""
    path, dice, stopped, longest = tmp_path / "stopped", random.Random(1), 0, 0.2
    words = command(path)
    for number in (signal.SIGTERM, signal.SIGINT) * 8:
        child = nursery.start(slowly, words=words)
        child.await_file(path / "manifest.json")
        words = ["resume", str(path)]
        time.sleep(dice.uniform(0.05, longest))
        if child.alive():
            child.send(number)
        if child.wait().code == 0:
            break
        assert child.code in (128 + number, -number), child.err  # −number: it had not begun to listen
        stopped += child.code == 128 + number
        if child.code == -number:
            longest *= 1.3  # on a busy machine a process needs longer to listen
        if stopped == 6:
            break
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    assert stopped >= 2
    same(opened(path), whole)
