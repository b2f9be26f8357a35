"""What the processes of a run tell each other when one of them is lost: who it is, and why."""

import os
import threading
import time

import pytest
from torch.distributed import HashStore

from surefoot.engine import board as module
from surefoot.engine.board import Board
from surefoot.errors import UsageError


@pytest.fixture
def boards(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.delenv("GROUP_RANK", raising=False)
    store = HashStore()
    return [Board(store, index, 3) for index in range(3)]


def arrive(*boards):
    for board in boards:
        board.arrive()


def test_a_process_that_hangs_is_named_but_not_one_that_is_slow_to_notice(boards):
    arrive(*boards)
    for board in boards:
        board._told -= 60  # the next exchange is a minute later
    arrive(*boards[:2])
    error = boards[0].lost(10.0, 10.0)
    assert f"no answer from process 2 of 3 (pid {os.getpid()} on " in str(error)
    assert "for 10 s" in str(error)
    assert "SUREFOOT_RANK_TIMEOUT" in str(error)


def test_a_killed_process_is_the_one_that_reports_nothing(boards):
    arrive(*boards)
    boards[1].lost(0.0, 10.0)
    assert "without a word from process 2 of 3 (pid " in str(boards[0].lost(0.0, 10.0))


def test_if_several_say_nothing_it_is_one_of_them(boards):
    assert "one of the processes 1 of 3 (pid " in str(boards[0].lost(0.0, 10.0))


def test_the_last_words_of_a_process_are_passed_on(boards):
    boards[2].confess(ValueError("it broke"))
    error = boards[0].lost(0.0, 10.0)
    assert str(error).endswith("is lost: process 2 of 3: ValueError: it broke")
    assert error.exit_code == 1
    boards[2].confess(UsageError("wrong"))
    assert boards[1].lost(0.0, 10.0).exit_code == 2  # whoever ends first, the launch ends with this


def test_an_error_that_was_printed_is_not_repeated_on_its_machine(boards, monkeypatch):
    boards[2].confess(ValueError("it broke"), printed=True)
    error = boards[0].lost(0.0, 10.0)
    assert "it broke" in str(error)  # for the run directory
    assert not error.speaks
    monkeypatch.setenv("GROUP_RANK", "1")
    assert boards[1].lost(0.0, 10.0).speaks


def test_one_process_on_each_machine_speaks(boards, monkeypatch):
    assert [board.lost(0.0, 10.0).speaks for board in boards[:2]] == [True, False]
    monkeypatch.setenv("GROUP_RANK", "1")
    assert boards[2].lost(0.0, 10.0).speaks


class Unreachable:
    """A store beyond a network that fails: it takes messages, and never answers."""

    def __init__(self):
        self.end = threading.Event()

    def set(self, key, value):
        pass

    def check(self, keys):
        self.end.wait(60)
        raise RuntimeError("no store")


def test_a_store_that_never_answers_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(module, "SLOW", 0.1)
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setenv("MASTER_ADDR", "far.example")
    store, begun = Unreachable(), time.monotonic()
    error = Board(store, 1, 2).lost(10.0, 10.0)
    assert time.monotonic() - begun < 30
    assert error.cut_off
    assert "no contact with far.example" in str(error)
    store.end.set()
