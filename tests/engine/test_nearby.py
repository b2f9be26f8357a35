"""Processes of one machine exchange numbers and messages through shared memory; here most of them are threads."""

import errno
import os
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest

from surefoot.engine import nearby
from surefoot.engine.nearby import SLOT, find_nearby
from tests.together import Meeting


def together(size, work, *, timeout=60.0, find=find_nearby):
    """The results of `work(nearby)` in threads that share memory as processes do."""
    meeting, results, errors = Meeting(size), [None] * size, []

    def run(index):
        try:
            found = find(index, size, lambda value: meeting.exchange(index, value), timeout)
            results[index] = work(found)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def numbers_of(index, count, dtype):
    return (np.random.default_rng(index).normal(size=count) * 100).astype(dtype)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("count", [0, 1, 1000, 2 * SLOT // 8 + 3])
def test_sums_are_those_in_the_order_of_the_processes(size, dtype, count):
    def work(group):
        total, most = (numbers_of(group.index, count, dtype) for _ in range(2))
        group.sum_(total)
        group.max_(most)
        return total, most

    found = together(size, work)
    expected = numbers_of(0, count, dtype)
    for index in range(1, size):
        expected = expected + numbers_of(index, count, dtype)
    most = np.max([numbers_of(index, count, dtype) for index in range(size)], axis=0)
    for total, largest in found:
        assert total.tobytes() == expected.tobytes()
        assert largest.tobytes() == most.tobytes()


def test_many_rounds_never_mix():
    """Nobody may write into a slot that another still reads."""

    def work(group):
        found = []
        for at in range(2_000):
            numbers = np.full(3 + at % 50, float(at + group.index))
            group.sum_(numbers)
            found.append(set(numbers.tolist()))
        return found

    first, *others = together(3, work)
    assert first == [{3.0 * at + 3.0} for at in range(2_000)]
    assert all(other == first for other in others)


def test_messages_of_any_size_arrive_in_order():
    messages = [b"", b"some", os.urandom(3 * SLOT), os.urandom(SLOT)]

    def work(group):
        return group.gather(messages[group.index]), group.gather(b"%d" % group.index)

    assert together(4, work) == [(messages, [b"0", b"1", b"2", b"3"])] * 4


def test_a_process_that_has_left_is_noticed_at_once():
    def work(group):
        group.gather(b"hello")
        if group.index == 1:
            group.leave()
            return None
        with pytest.raises(RuntimeError, match="process 1 has left"):
            group.gather(b"again")
        return True

    assert together(2, work) == [True, None]


def test_one_that_does_not_come_is_given_up_after_the_timeout():
    def work(group):
        if group.index == 0:
            with pytest.raises(RuntimeError, match="does not answer"):
                group.gather(b"hello")
        return True

    assert together(2, work, timeout=0.1) == [True, True]


def test_one_that_has_ended_is_noticed_long_before_the_timeout():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def find(index, size, gather, timeout):
        found = find_nearby(index, size, gather, timeout)
        if index == 0:
            found._lives.register(os.pidfd_open(child.pid))
        return found

    def work(group):
        if group.index == 0:
            child.communicate(b"\n")
            with pytest.raises(RuntimeError, match="a process has ended"):
                group.gather(b"hello")
        return True

    assert together(2, work, find=find) == [True, True]


def test_no_file_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(nearby, "FOLDER", str(tmp_path))
    assert together(2, lambda group: group.gather(b"hello")) == [[b"hello"] * 2] * 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["mkstemp", "posix_fallocate", "pidfd_open"])
def test_without_such_memory_there_is_none_and_no_file(what, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(nearby, "FOLDER", str(tmp_path))
    monkeypatch.setattr(tempfile if what == "mkstemp" else os, what, refuse)
    assert together(2, lambda group: group) == [None, None]
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_open_the_memory_makes_all_do_without(monkeypatch):
    opened, own = nearby._opened, threading.local()

    def open_or_not(path, size):
        if own.index == 1:
            raise FileNotFoundError(path)
        return opened(path, size)

    def find(index, *rest):
        own.index = index
        return find_nearby(index, *rest)

    monkeypatch.setattr(nearby, "_opened", open_or_not)
    assert together(3, lambda group: group, find=find) == [None] * 3
