"""Ctrl-C and SIGTERM: finish the update, save, leave; and leave all the same when that takes too long."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 10.0  # seconds from the first signal to the end of the update in progress
STUCK = 5.0  # seconds more for Python code to notice; after them the process is inside somebody's C code


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by a signal, and can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Signals:
    """The first signal asks politely; a second one, or `PATIENCE` seconds, raises KeyboardInterrupt."""

    def __init__(self, suspend: Callable[[str], None], last_words: Callable[[], None] | None = None) -> None:
        self.received = 0
        self._suspend, self._last_words, self._left = suspend, last_words, threading.Event()

    def handle(self, number: int, frame: Any) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        self._suspend(f"asked to by {signal.Signals(number).name}")
        threading.Thread(target=self._watch, name="surefoot-signals", daemon=True).start()

    def _watch(self) -> None:
        if self._left.wait(PATIENCE):
            return
        _thread.interrupt_main(signal.SIGINT)
        if self._last_words is None or self._left.wait(STUCK):
            return
        self._last_words()  # the main thread hangs in a call that never returns to Python
        os._exit(128 + self.received)

    def leave(self) -> None:
        self._left.set()


@contextmanager
def stop_on_signals(suspend: Callable[[str], None], last_words: Callable[[], None] | None = None) -> Iterator[Signals]:
    """`last_words`: the process is ours to end; they are said before it is, if nothing else helps."""
    signals = Signals(suspend, last_words)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        signals.leave()
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def complain(text: str) -> None:
    """To stderr, past every buffer and lock that a stuck thread may hold."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"surefoot: {text}\n".encode())
