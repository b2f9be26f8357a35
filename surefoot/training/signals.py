"""Ctrl-C and SIGTERM: finish the update, save, leave; and leave all the same when that takes too long."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

PATIENCE = 10.0  # seconds from the first signal to the end of the update in progress
STUCK = 5.0  # seconds more for Python code to notice; after them the process is inside somebody's C code


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by a signal, and can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Signals:
    """The first signal asks politely; a second one, or `PATIENCE` seconds, raises KeyboardInterrupt.

    The kernel tells a thread of ours of it through a pipe, because Python's own handler waits for the main thread,
    which may be inside a call that never returns.
    """

    def __init__(self, suspend: Callable[[str], None], last_words: Callable[[], None] | None) -> None:
        self.received = 0
        self._suspend, self._last_words, self._left = suspend, last_words, threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def handle(self, number: int, frame: Any) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = number
        self._suspend(f"asked to by {signal.Signals(number).name}")

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as leaving:
            leaving.callback(os.close, self._write)  # ends the watcher, which closes its own side
            leaving.callback(self._left.set)
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self.handle)
                leaving.callback(signal.signal, number, signal.SIG_DFL if before is None else before)
            leaving.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._write, warn_on_full_buffer=False))
            try:
                threading.Thread(target=self._watch, name="surefoot-signals", daemon=True).start()
            except RuntimeError:  # the system refuses threads: a signal is handled once the call in progress returns
                leaving.callback(os.close, self._read)
            yield

    def _watch(self) -> None:
        try:
            told = os.read(self._read, 1)
            if not told or self._left.wait(PATIENCE):
                return
            _thread.interrupt_main(signal.SIGINT)
            if self._last_words is not None and not self._left.wait(STUCK):
                self._last_words()
                os._exit(128 + told[0])
        finally:
            os.close(self._read)


@contextmanager
def stop_on_signals(suspend: Callable[[str], None], last_words: Callable[[], None] | None = None) -> Iterator[Signals]:
    """`last_words`: the process is ours to end; they are said before it is, if nothing else helps."""
    signals = Signals(suspend, last_words)
    if threading.current_thread() is not threading.main_thread():
        yield signals  # signals are not for us
        return
    with signals.installed():
        yield signals


def complain(text: str) -> None:
    """To stderr, past every buffer and lock that a stuck thread may hold."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"surefoot: {text}\n".encode())
