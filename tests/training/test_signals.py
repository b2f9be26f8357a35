"""Signals in this process: handlers come and go, the watcher ends, and nothing keeps a trainer alive."""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import pytest

from surefoot.training.life import signals as module
from surefoot.training.life.signals import signals_handled

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2)


class Trainer:
    def __init__(self):
        self.reasons, self.asked = [], []

    def suspend(self, reason):
        self.reasons.append(reason)

    def save(self, why):
        self.asked.append(why)

    def last_words(self):
        raise AssertionError("nobody is stuck")


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "surefoot-signals"]


def test_on_leaving_the_watcher_has_ended_and_nothing_holds_the_trainer():
    """A daemon thread that freed the tensors of a trainer while Python shuts down would abort the process."""
    trainer = Trainer()
    with signals_handled(trainer.suspend, trainer.save, trainer.last_words) as signals:
        assert len(watchers()) == 1
    assert watchers() == []
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None
    assert signals.received == 0


@pytest.mark.parametrize("number", ALL[:4], ids=lambda number: number.name)
def test_a_signal_that_asks_to_stop_is_told_once_and_the_handlers_are_as_before(number):
    before, trainer = [signal.getsignal(each) for each in ALL], Trainer()
    with signals_handled(trainer.suspend, trainer.save) as signals:
        os.kill(os.getpid(), number)
        assert trainer.reasons == [f"asked to by {number.name}"]
    assert signals.received == number
    assert [signal.getsignal(each) for each in ALL] == before
    assert watchers() == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGXCPU], ids=lambda number: number.name)
def test_what_the_system_sends_more_than_once_is_no_second_thought(number):
    """A terminal that closes sends several; a limit on CPU time, one each second."""
    trainer = Trainer()
    with signals_handled(trainer.suspend) as signals:
        for _ in range(3):
            os.kill(os.getpid(), number)
    assert len(trainer.reasons) == 1
    assert signals.received == number


@pytest.mark.parametrize("number", ALL[4:], ids=lambda number: number.name)
def test_the_warning_of_a_scheduler_asks_for_a_checkpoint_and_nothing_else(number, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    trainer = Trainer()
    with signals_handled(trainer.suspend, trainer.save, trainer.last_words) as signals:
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # no KeyboardInterrupt comes
    assert trainer.asked == [number.name]
    assert trainer.reasons == []
    assert signals.received == 0


@pytest.mark.parametrize("number", ALL[2:], ids=lambda number: number.name)
@pytest.mark.parametrize("theirs", ["ignored", "handled"])
def test_a_signal_that_somebody_ignores_or_handles_already_stays_theirs(number, theirs):
    """`nohup` ignores SIGHUP; the launcher of a job may wait for SIGUSR1 itself."""
    got, trainer = [], Trainer()
    handler = signal.SIG_IGN if theirs == "ignored" else lambda *_: got.append(1)
    before = signal.signal(number, handler)
    try:
        with signals_handled(trainer.suspend, trainer.save):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert trainer.reasons == trainer.asked == []
    assert got == ([1] if theirs == "handled" else [])


def test_a_signal_of_somebody_else_does_not_start_the_clock(monkeypatch):
    """Python tells the watcher of every signal that has a handler, such as the alarm of an env."""
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with signals_handled(Trainer().suspend):
            os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.2)  # no KeyboardInterrupt comes
    finally:
        signal.signal(signal.SIGALRM, before)


def test_patience_that_runs_out_interrupts_the_main_thread(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.01)

    def outlast_it():
        with signals_handled(Trainer().suspend):
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        outlast_it()
    assert watchers() == []


def test_without_a_thread_to_watch_signals_are_handled_all_the_same(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    trainer = Trainer()
    with signals_handled(trainer.suspend):
        os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.reasons == ["asked to by SIGTERM"]


def test_a_forked_child_has_the_old_handlers_and_keeps_nobody_from_leaving():
    """An env that ends its helpers by SIGTERM must end them, and not ask the run to stop."""
    trainer, (reads, writes) = Trainer(), os.pipe()
    with signals_handled(trainer.suspend) as signals:
        pid = os.fork()
        if pid == 0:
            os.write(writes, b"1" if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else b"0")
            time.sleep(60)
            os._exit(0)
        as_before = os.read(reads, 1)
    assert watchers() == []  # though the child lives, and would hold the pipe open
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert as_before == b"1"
    assert signals.received == 0
    os.close(reads)
    os.close(writes)


def test_last_words_with_a_closed_stderr_go_nowhere(monkeypatch, tmp_path):
    """Its number may belong to any file by now."""
    monkeypatch.setattr(sys, "__stderr__", None)
    module.complain("nobody hears it")
