"""Signals during a run: Ctrl-C, SIGTERM and SIGHUP finish the update, save and leave; SIGUSR1 and SIGUSR2 only save."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from surefoot.text import printable

PATIENCE = 10.0  # seconds from the first signal to the end of the update in progress
STUCK = 5.0  # seconds more for Python code to notice; after them the process is inside somebody's C code


def known_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Those that this system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


STOPPING = known_signals("SIGINT", "SIGTERM", "SIGHUP")
WARNING = known_signals("SIGUSR1", "SIGUSR2")  # what schedulers send some time before they kill
# Left alone unless they would kill us: `nohup` ignores SIGHUP, and a job launcher may have handlers of its own.
ONLY_INSTEAD_OF_DEATH = known_signals("SIGHUP", "SIGUSR1", "SIGUSR2")


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by a signal, and can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Signals:
    """The first signal asks politely; a second one, or `PATIENCE` seconds, raises KeyboardInterrupt.

    The kernel tells a thread of ours of it through a pipe, because Python's own handler waits for the main thread,
    which may be inside a call that never returns. That thread is joined on leaving, and what it could hold on to is
    dropped: freeing a trainer's tensors while the interpreter shuts down would abort the process.
    """

    def __init__(
        self,
        suspend: Callable[[str], None],
        save: Callable[[str], None] | None = None,
        last_words: Callable[[], None] | None = None,
    ) -> None:
        self.received = 0
        self._suspend: Callable[[str], None] | None = suspend
        self._save, self._last_words, self._left = save, last_words, threading.Event()
        self._before: dict[int, signal._HANDLER] = {}  # the handlers that were there
        self._watcher = threading.Thread(target=self._watch, name="surefoot-signals", daemon=True)

    def stop(self, number: int, frame: object) -> None:
        if self.received:
            if number != getattr(signal, "SIGHUP", None):  # a terminal that closes sends several
                raise KeyboardInterrupt
            return
        self.received = number
        if self._suspend is not None:
            self._suspend(f"asked to by {signal.Signals(number).name}")

    def warn(self, number: int, frame: object) -> None:
        if self._save is not None:
            self._save(signal.Signals(number).name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        global _installed
        self._read, self._write = os.pipe()
        if hasattr(os, "set_blocking"):  # Windows has it since Python 3.12, and does not ask for it
            os.set_blocking(self._write, False)
        outer, _installed = _installed, self
        with ExitStack() as leaving:
            leaving.callback(self._forget, outer)
            leaving.callback(self._end_watcher)
            leaving.callback(self.restore_handlers)
            self._install_handlers()
            with suppress(RuntimeError):  # no thread is to be had: then a second signal is needed where we hang
                self._watcher.start()
                leaving.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._write, warn_on_full_buffer=False))
            yield

    def _install_handlers(self) -> None:
        handlers = dict.fromkeys(STOPPING, self.stop)
        if self._save is not None:
            handlers |= dict.fromkeys(WARNING, self.warn)
        for number, handler in handlers.items():
            if number not in ONLY_INSTEAD_OF_DEATH or signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, handler)

    def restore_handlers(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _end_watcher(self) -> None:
        self._left.set()
        if self._watcher.ident is not None and self._write >= 0:
            with suppress(BlockingIOError):  # full: it has enough to wake up from
                os.write(self._write, b"\0")  # closing it would not do: a child of an env may have it open, too
            self._watcher.join()

    def _forget(self, outer: Signals | None) -> None:
        global _installed
        _installed = outer
        self._suspend = self._save = self._last_words = None
        self.close()

    def close(self) -> None:
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            if end >= 0:  # else it was closed when this process was forked
                os.close(end)

    def _watch(self) -> None:
        told = self._await_stop()
        if told is None or self._left.wait(PATIENCE):
            return
        _thread.interrupt_main(signal.SIGINT)
        if self._last_words is None or self._left.wait(STUCK):
            return
        if (last_words := self._last_words) is not None:
            last_words()
            os._exit(128 + told)

    def _await_stop(self) -> int | None:
        """The number of the first signal that asks us to stop; none if we leave before one does.

        The pipe has every signal that anybody handles in Python: SIGCHLD, SIGALRM, SIGWINCH, …
        """
        while not self._left.is_set():
            (number,) = os.read(self._read, 1)
            if number in STOPPING and number in self._before:
                return number
        return None


_installed: Signals | None = None


def _in_a_forked_child() -> None:
    """A process that an env forks is no part of the run: signals to it are its own, and kill it as ever."""
    global _installed
    inherited, _installed = _installed, None
    if inherited is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            inherited.restore_handlers()
        inherited.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)


@contextmanager
def signals_handled(
    suspend: Callable[[str], None],
    save: Callable[[str], None] | None = None,
    last_words: Callable[[], None] | None = None,
) -> Iterator[Signals]:
    """`suspend`, `save`: called with a reason when a signal asks for it.

    `last_words`: the process is ours to end; they are said before it is, if nothing else helps.
    """
    signals = Signals(suspend, save, last_words)
    if threading.current_thread() is not threading.main_thread():
        yield signals  # signals are not for us
        return
    with signals.installed():
        yield signals


def complain(text: str) -> None:
    """To stderr, past every buffer and lock that a stuck thread may hold."""
    if sys.__stderr__ is not None:  # else it is closed, and its number may be that of any file by now
        with suppress(OSError, ValueError):
            os.write(sys.__stderr__.fileno(), printable(f"surefoot: {text}\n").encode())
