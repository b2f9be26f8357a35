"""A run directory that is renamed or deleted under a run: it goes on in the new place, or stops and says why."""

import json
import os
import shutil
import signal
from itertools import count
from pathlib import Path

import pytest

import surefoot
import surefoot.runs.files
from surefoot.cli.main import main
from surefoot.training.life.session import Session
from surefoot.training.loop import writing
from tests.faults import envs
from tests.faults.runs import TINY, cli, command, newest, opened, same
from tests.faults.test_signals import before_call, in_phase

OLD, NEW = Path("old/run"), Path("new/renamed")


def rename():
    NEW.parent.mkdir(exist_ok=True)
    OLD.rename(NEW)


def rename_and_put_another_there():
    rename()
    OLD.mkdir()
    (OLD / "checkpoints").mkdir()


def rename_the_parent():
    OLD.parent.rename("new")


def change_the_working_directory():
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")


def delete():
    while OLD.exists():  # a checkpoint may be on its way into it
        shutil.rmtree(OLD, ignore_errors=True)


def delete_and_put_another_there():
    delete()
    (OLD / "checkpoints").mkdir(parents=True)


def move_to_another_disk():
    while True:  # until no file goes away meanwhile: a checkpoint may be on its way to the disk
        try:
            shutil.copytree(OLD, NEW)
            break
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(NEW, ignore_errors=True)
    delete()


ACTIONS = {
    action.__name__: action
    for action in (
        rename,
        rename_and_put_another_there,
        rename_the_parent,
        change_the_working_directory,
        delete,
        delete_and_put_another_there,
        move_to_another_disk,
    )
}


def during(phase, action, words):
    """In a child: the command line, with something happening to its directory in the middle of a phase."""
    in_phase(phase, ACTIONS[action])
    return main(words)


def files_in(path):
    return [found for found in path.rglob("*") if found.is_file()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("phase", ["start", "update", "save", "evaluation", "last update", "final evaluation"])
def test_a_run_that_is_renamed_goes_on_in_its_new_place(nursery, whole, phase):
    child = nursery.run(during, phase=phase, action="rename", words=command(OLD)).ended(0)
    same(opened(NEW), whole)
    assert opened(NEW).directory.read_status()["state"] == "done"
    assert opened(NEW).result["run_dir"] == str(NEW)
    assert not OLD.exists()
    assert f"the run directory is now {NEW}; the run continues there" in child.out
    assert f"run:     {NEW}\n" in child.out
    assert f"surefoot video {NEW}" in child.out
    assert f"is now {NEW}" in (NEW / "log.txt").read_text()
    (events,) = (NEW / "tensorboard").iterdir()
    assert events.stat().st_size > 1000


@pytest.mark.slow
def test_another_directory_of_the_old_name_is_not_touched(nursery, whole):
    nursery.run(during, phase="update", action="rename_and_put_another_there", words=command(OLD)).ended(0)
    same(opened(NEW), whole)
    assert files_in(OLD) == []


@pytest.mark.slow
def test_a_directory_above_may_be_renamed_and_the_working_directory_may_change(nursery, whole):
    nursery.run(during, phase="update", action="rename_the_parent", words=command(OLD)).ended(0)
    same(opened(Path("new/run")), whole)
    assert not OLD.parent.exists()
    nursery.run(during, phase="update", action="change_the_working_directory", words=command(OLD)).ended(0)
    same(opened(OLD), whole)
    assert list(Path("elsewhere").iterdir()) == []


def rename_at_operation(number, words):
    """In a child: the command line; its directory is renamed before the `number`-th disk operation of one save."""
    real, numbers, at_work = writing.write_checkpoint, count(), []

    def write(root, step, *what, **how):
        at_work.append(step == 800)
        try:
            return real(root, step, *what, **how)
        finally:
            at_work.pop()

    def wrap(call):
        def called(*args, **kwargs):
            if at_work and at_work[0] and next(numbers) == number:
                rename()
            return call(*args, **kwargs)

        return called

    writing.write_checkpoint = write
    for name in ("mkdir", "open", "fsync", "replace", "unlink"):
        setattr(os, name, wrap(getattr(os, name)))
    surefoot.runs.files.open = wrap(open)
    return main(words)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 5, 12, 16, pytest.param(None, marks=pytest.mark.slow)])
def test_a_rename_in_the_middle_of_a_save_loses_nothing(nursery, whole, number):
    for point in count() if number is None else [number]:
        nursery.run(rename_at_operation, number=point, words=command(OLD)).ended(0)
        if OLD.exists():  # this save has no such point
            assert number is None
            assert point > 15
            break
        same(opened(NEW), whole)
        assert opened(NEW).directory.read_status()["state"] == "done"
        assert "could not be written" not in (NEW / "log.txt").read_text()
        shutil.rmtree(NEW)


def signalled_after_a_rename(words):
    """In a child."""
    in_phase("rollout", rename)
    in_phase("update", lambda: os.kill(os.getpid(), signal.SIGTERM))
    return main(words)


@pytest.mark.slow
def test_what_to_type_after_a_signal_names_the_new_place(nursery, whole):
    child = nursery.run(signalled_after_a_rename, words=command(OLD)).ended(143)
    assert child.err.splitlines()[-1] == f"surefoot resume {NEW}"
    assert opened(NEW).directory.read_status()["state"] == "interrupted"
    nursery.run(cli, words=["resume", str(NEW)]).ended(0)
    same(opened(NEW), whole)


def fail_after(action, words):
    """In a child: the env breaks after something has happened to the directory, in the same rollout."""

    class Breaks(surefoot.Callback):
        def on_rollout(self, trainer, rollout):
            if trainer.step >= 832:
                ACTIONS[action]()
                raise ZeroDivisionError("mine")

    before_call(Session, "run", lambda: None, lambda session: setattr(session, "callbacks", [Breaks()]) or True)
    return main(words)


def test_what_a_failed_run_leaves_is_in_the_new_place(nursery):
    child = nursery.run(fail_after, action="rename", words=command(OLD)).ended(1)
    assert "ZeroDivisionError: mine" in child.err
    assert not OLD.exists()
    assert opened(NEW).directory.read_status()["state"] == "failed"
    assert newest(opened(NEW)).name == "832"
    assert json.loads((NEW / "crash" / "832" / "facts.json").read_text())["error"] == "ZeroDivisionError: mine"


def test_a_failed_run_does_not_bring_a_deleted_directory_back(nursery):
    child = nursery.run(fail_after, action="delete", words=command(OLD)).ended(1)
    assert "ZeroDivisionError: mine" in child.err
    assert not OLD.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("phase", ["start", "update", "save", "evaluation", "last update", "final evaluation"])
def test_a_run_whose_directory_is_deleted_stops_and_brings_nothing_back(nursery, phase):
    words = command(OLD, total_steps=3200 if phase == "update" else 1600)
    child = nursery.run(during, phase=phase, action="delete", words=words).ended(1)
    said = f"surefoot: the run directory {OLD} is gone: it was deleted, or moved to another disk"
    assert said in child.err
    assert "Traceback" not in child.err
    assert not OLD.exists()
    if phase == "update":
        assert "The run stopped at step 864. A copy of it elsewhere can be resumed." in child.err
    assert nursery.orphans() == []


def test_another_directory_in_the_place_of_a_deleted_one_is_not_touched(nursery):
    child = nursery.run(during, phase="update", action="delete_and_put_another_there", words=command(OLD)).ended(1)
    assert "is gone" in child.err
    assert files_in(OLD) == []


@pytest.mark.slow
def test_a_run_that_was_moved_to_another_disk_goes_on_there_when_it_is_resumed(nursery, whole):
    child = nursery.run(during, phase="update", action="move_to_another_disk", words=command(OLD)).ended(1)
    assert "or moved to another disk" in child.err
    assert opened(NEW).directory.read_status()["state"] == "interrupted"
    nursery.run(cli, words=["resume", str(NEW)]).ended(0)
    same(opened(NEW), whole)


class MoveWhileFilming(surefoot.Callback):
    """Renames the directory at the third picture of the first video."""

    def on_start(self, trainer):
        pictures = []
        before_call(envs.Breaks, "render", rename, lambda _: pictures.append(1) or len(pictures) > 2)


def test_a_video_in_the_making_comes_to_the_new_place(monkeypatch):
    settings = {**TINY, "env": lambda **how: envs.Breaks(where="nowhere", **how), "eval_every": None}
    settings |= {"total_steps": 320, "video_every": 160, "eval_max_steps": 5}
    monkeypatch.setattr(envs.Breaks, "render", envs.Breaks.render)  # to be as before afterwards
    run = surefoot.train(**settings, run_dir=OLD, callbacks=[MoveWhileFilming()])
    assert run.path == NEW
    assert sorted(path.name for path in (NEW / "videos").iterdir()) == ["160.mp4", "320.mp4"]
    assert not OLD.exists()
    assert "could not" not in (NEW / "log.txt").read_text()
