"""Ctrl-C, SIGTERM and SIGHUP, once and twice, in every phase of a run; a scheduler's warning; a run that never ends."""

import ctypes
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import surefoot
import surefoot.runs.checkpoints
import surefoot.training.life.signals
from surefoot.cli.main import main
from surefoot.engine.torch.learner import Learner
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.native_envs import NativeEpisodes
from surefoot.kernels.network import Network
from surefoot.kernels.rollout import NativeRollout
from surefoot.training.evaluation.gym_episodes import EvaluationEpisode
from surefoot.training.life.session import Session
from surefoot.training.loop.selection import Selection
from surefoot.training.trainer import Trainer
from tests.faults.runs import cli, command, newest, opened, same

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
STEP = 832  # where it happens, if it can happen at any step: one update after the checkpoint of step 800
NOTICE = Path("now")  # the child makes it when it is where it should be


def before_call(owner, name, action, when=lambda *_: True):
    """`action` before the first call of `owner.name` for which `when`."""
    real, done = getattr(owner, name), []

    def call(*args, **kwargs):
        if not done and when(*args):
            done.append(True)
            action()
        return real(*args, **kwargs)

    setattr(owner, name, call)


# Where a phase happens, on either engine.
STEPS = ((GymEnvs, "step"), (NativeRollout, "run"))
SLEEPS = ((CartPoleEnv, "step"), (NativeRollout, "run"))
LEARNS = ((Learner, "descend"), (Network, "epochs"))
PLAYS = ((EvaluationEpisode, "step"), (NativeEpisodes, "step"))


def before_any(places, action, when):
    for owner, name in places:
        before_call(owner, name, action, when)


PHASES = ("start", "rollout", "sleeping env", "update", "save", "evaluation", "last update", "final evaluation")


def in_phase(phase, action):
    """Arrange for `action` in the middle of a phase."""
    inside, trainers = set(), []
    before_call(Trainer, "train", lambda: None, lambda trainer: trainers.append(trainer) or True)

    def arrived(*_):
        return trainers and trainers[0].step >= STEP

    def mark(owner, name):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            inside.add(name)
            try:
                return real(*args, **kwargs)
            finally:
                inside.discard(name)

        setattr(owner, name, call)

    if phase == "start":
        before_call(Trainer, "_loop", action)
    elif phase == "rollout":
        before_any(STEPS, action, arrived)
    elif phase == "sleeping env":
        before_any(SLEEPS, lambda: (action(), time.sleep(0.3)), arrived)
    elif phase == "update":
        before_any(LEARNS, action, arrived)
    elif phase == "save":
        before_call(surefoot.runs.checkpoints, "write_all_durable", action, arrived)  # in the thread that writes
    elif phase == "evaluation":
        mark(Selection, "run")
        before_any(PLAYS, action, lambda *_: arrived() and "run" in inside)
    elif phase == "last update":
        before_any(LEARNS, action, lambda *_: trainers[0].step + 32 >= trainers[0].budget)
    elif phase == "final evaluation":
        mark(Session, "_evaluate")
        before_any(PLAYS, action, lambda *_: "_evaluate" in inside)


def signalled_in(phase, number, words):
    """In a child: the command line, which gets a signal in the middle of a phase."""
    in_phase(phase, lambda: os.kill(os.getpid(), number))
    return main(words)


@pytest.mark.sampled(3)
@BOTH
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_leaves_a_run_that_goes_on_exactly(nursery, whole, tmp_path, phase, number):
    path = tmp_path / "run"
    child = nursery.run(signalled_in, phase=phase, number=number, words=command(path)).ended(128 + number)
    run = opened(path)
    assert run.directory.read_status()["state"] == "interrupted"
    assert f"surefoot resume {path}" == child.err.splitlines()[-1]
    assert nursery.orphans() == []
    nursery.run(cli, words=shlex.split(child.err.splitlines()[-1])[1:]).ended(0)
    same(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGXCPU], ids=lambda number: number.name)
@pytest.mark.parametrize("phase", ["rollout", "update", "save", "final evaluation"])
def test_a_closed_terminal_or_spent_cpu_time_leaves_a_run_that_goes_on_exactly(nursery, whole, tmp_path, phase, number):
    path = tmp_path / "run"
    child = nursery.run(signalled_in, phase=phase, number=number, words=command(path)).ended(128 + number)
    assert opened(path).directory.read_status()["state"] == "interrupted"
    assert child.err.splitlines()[-1] == f"surefoot resume {path}"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


def without_a_terminal(words):
    """In a child: the command line, whose terminal is gone when SIGHUP comes: every write to it fails."""

    def hang_up():
        ours, theirs = os.openpty()
        for number in (1, 2):
            os.dup2(theirs, number)
        os.close(theirs)
        os.close(ours)
        os.kill(os.getpid(), signal.SIGHUP)

    in_phase("update", hang_up)
    return main(words)


@pytest.mark.slow
def test_a_run_whose_terminal_is_gone_saves_and_leaves(nursery, whole, tmp_path):
    path = tmp_path / "run"
    nursery.run(without_a_terminal, words=command(path)).ended(129)
    assert opened(path).directory.read_status()["state"] == "interrupted"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


def under_nohup(words):
    """In a child: the command line, which ignores SIGHUP, and gets it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return signalled_in("update", signal.SIGHUP, words)


def test_under_nohup_a_hangup_is_nothing(nursery, whole, tmp_path):
    nursery.run(under_nohup, words=command(tmp_path / "run")).ended(0)
    same(opened(tmp_path / "run"), whole)


def warned_and_killed(number, words):
    """In a child: the command line; a scheduler warns it in an update, and kills it after the next one."""

    class Kill(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.step >= STEP + 64:
                os.kill(os.getpid(), signal.SIGKILL)

    before_call(Session, "run", lambda: None, lambda session: setattr(session, "callbacks", [Kill()]) or True)
    return signalled_in("update", number, words)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=["SIGUSR1", "SIGUSR2"])
def test_the_warning_of_a_scheduler_saves_after_the_update_and_the_run_goes_on(nursery, whole, tmp_path, number):
    path = tmp_path / "run"
    child = nursery.run(signalled_in, phase="update", number=number, words=command(path)).ended(0)
    said = f"{number.name}: the checkpoint of step {STEP + 32} is written; training continues"
    assert said in child.out
    assert said in opened(path).directory.log.read_text()
    same(opened(path), whole)
    path = tmp_path / "killed"
    nursery.run(warned_and_killed, number=number, words=command(path)).ended(-signal.SIGKILL)
    assert newest(opened(path)).name == str(STEP + 32)
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


def with_signalled_helpers(words):
    """In a child: the command line; as schedulers do, a signal goes to every process of the job, but the run itself."""

    class Warn(surefoot.Callback):
        def on_update(self, trainer, metrics):
            if trainer.update == 20:
                helpers = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
                assert len(helpers) == 2
                for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
                    for pid in helpers:
                        os.kill(int(pid), number)

    before_call(Session, "run", lambda: None, lambda session: setattr(session, "callbacks", [Warn()]) or True)
    return main(words)


@pytest.mark.slow
def test_workers_leave_signals_to_the_run(nursery, tmp_path):
    nursery.run(with_signalled_helpers, words=command(tmp_path / "run", workers=2)).ended(0)


def stuck_in(phase, words, hang, patience=None):
    """In a child: the command line, which says that it has come to the phase and then does not get on."""
    if patience is not None:
        surefoot.training.life.signals.PATIENCE, surefoot.training.life.signals.STUCK = patience

    def stay():
        NOTICE.touch()
        HANGS[hang]()

    in_phase(phase, stay)
    return main(words)


def sleep_in_python():
    for _ in range(600):
        time.sleep(0.1)


def hang_in_c():
    """A deadlock that no signal ends: a mutex locked twice."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


HANGS = {"python": sleep_in_python, "c": hang_in_c}


@pytest.mark.sampled(1)
@BOTH
@pytest.mark.parametrize("phase", ["rollout", "update", "save", "evaluation", "final evaluation"])
def test_a_second_signal_stops_at_once(nursery, whole, tmp_path, phase, number):
    path = tmp_path / "run"
    child = nursery.start(stuck_in, phase=phase, words=command(path), hang="python")
    child.await_file(NOTICE)
    child.send(number)
    time.sleep(0.2)
    assert child.alive()  # it waits for the update
    child.send(number)
    child.wait(30.0).ended(128 + number)  # the hang would last a minute
    assert child.err.splitlines()[-1] == f"surefoot resume {path}"
    assert "Traceback" not in child.err
    assert nursery.orphans() == []
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


@pytest.mark.slow
@BOTH
def test_an_update_that_outlasts_the_patience_is_left_and_the_last_checkpoint_goes_on(nursery, whole, tmp_path, number):
    path = tmp_path / "run"
    child = nursery.start(stuck_in, phase="update", words=command(path), hang="python", patience=(0.3, 20.0))
    child.await_file(NOTICE)
    child.send(number)
    child.wait(30.0).ended(128 + number)
    assert "at step 832; saved up to 800. To continue:" in child.err
    assert child.err.splitlines()[-1] == f"surefoot resume {path}"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("phase", ["rollout", "evaluation"])
def test_a_main_thread_that_hangs_in_c_code_is_ended_by_the_watcher(nursery, whole, tmp_path, phase, number):
    path = tmp_path / "run"
    child = nursery.start(stuck_in, phase=phase, words=command(path), hang="c", patience=(0.2, 0.2))
    child.await_file(NOTICE)
    time.sleep(0.1)  # into the call
    child.send(number)
    child.wait(30.0).ended(128 + number)
    assert child.err.splitlines()[-1] == f"surefoot resume {path}"
    assert opened(path).directory.read_status()["state"] == "interrupted"
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


@pytest.mark.slow
def test_a_signal_before_the_first_checkpoint_says_that_nothing_is_saved_and_goes_on_all_the_same(
    nursery, whole, tmp_path
):
    path = tmp_path / "run"
    child = nursery.start(stuck_in, phase="start", words=command(path), hang="python")
    child.await_file(NOTICE)
    limit = time.monotonic() + 9.0  # before the patience with the first signal ends
    while child.alive() and time.monotonic() < limit:  # two that come before Python sees the first are one
        child.send(signal.SIGINT)
        time.sleep(0.1)
    child.wait(30.0).ended(130)
    assert "nothing is saved yet" in child.err
    nursery.run(cli, words=["resume", str(path)]).ended(0)
    same(opened(path), whole)


def signal_with_a_recording_open(number, words):
    """In a child: the command line, signalled while ffmpeg waits for pictures."""
    pictures = []
    before_call(
        CartPoleEnv, "render", lambda: os.kill(os.getpid(), number), lambda _: pictures.append(1) or len(pictures) > 2
    )
    return main(words)


@BOTH
def test_a_signal_while_filming_leaves_no_ffmpeg_behind(nursery, tmp_path, number):
    path = tmp_path / "run"
    words = command(path, video_every=800, eval_max_steps=5)
    child = nursery.run(signal_with_a_recording_open, number=number, words=words).ended(128 + number)
    assert child.err.splitlines()[-1] == f"surefoot resume {path}"
    assert nursery.orphans() == []
    assert list(path.rglob("*.mp4")) == []
