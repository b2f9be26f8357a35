"""Signals during a run: Ctrl-C, SIGTERM, SIGHUP and SIGXCPU finish the update, save and exit; SIGUSR1 and SIGUSR2 only
save."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic

from surefoot.text import printable

PARENT_DIED = 1  # PR_SET_PDEATHSIG of prctl(2)
PATIENCE = 10.0  # seconds from the first signal to the end of the update in progress
CALM = 5.0  # seconds in which a launcher of several processes may pass on a signal that the terminal sent already
STUCK = 5.0  # further seconds for Python code to react; after that we assume it hangs in C code


def known_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Those of the signals that exist on this system."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


STOPPING = known_signals("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU")
REPEATED = known_signals("SIGHUP", "SIGXCPU")  # a closing terminal sends several; a limit on CPU time, one each second
WARNING = known_signals("SIGUSR1", "SIGUSR2")  # schedulers send these some time before they kill
# Handled only if they would otherwise kill us: `nohup` ignores SIGHUP, and a job launcher may have its own handlers.
ONLY_INSTEAD_OF_DEATH = known_signals("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2")


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to stop; it can be resumed."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """The exit code of a process that was interrupted; 130 is the shell's own for Ctrl-C."""
    return interrupt.exit_code if isinstance(interrupt, Interrupted) else 130


class Signals:
    """The first signal ends the run after the update; a second one, or `PATIENCE` seconds, raises KeyboardInterrupt.

    A thread of ours sees the signal through a pipe (`signal.set_wakeup_fd`), because Python's own handler waits for
    the main thread, which may be inside a call that never returns. The thread is joined at the end, and its references
    are dropped: freeing a trainer's tensors while the interpreter shuts down would abort the process.
    """

    def __init__(
        self,
        suspend: Callable[[str], None],
        save: Callable[[str], None] | None = None,
        last_words: Callable[[], None] | None = None,
        calm: float = 0.0,
    ) -> None:
        """`calm`: seconds after the first signal in which another one is the same request, passed on by a launcher."""
        self.received, self._calm, self._when = 0, calm, 0.0
        self._suspend: Callable[[str], None] | None = suspend
        self._save, self._last_words, self._left = save, last_words, threading.Event()
        self._before: dict[int, signal._HANDLER] = {}  # the previous handlers
        self._watcher = threading.Thread(target=self._watch, name="surefoot-signals", daemon=True)

    def stop(self, number: int, frame: object) -> None:
        if self.received:
            again = monotonic() - self._when < self._calm
            if number not in REPEATED and not again:
                raise KeyboardInterrupt
            return
        self.received, self._when = number, monotonic()
        if self._suspend is not None:
            self._suspend(f"asked to by {signal.Signals(number).name}")

    def warn(self, number: int, frame: object) -> None:
        if self._save is not None:
            self._save(signal.Signals(number).name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        global _installed
        self._read, self._write = os.pipe()
        if hasattr(os, "set_blocking"):  # Windows has it since Python 3.12, and does not need it
            os.set_blocking(self._write, False)
        outer, _installed = _installed, self
        with ExitStack() as leaving:
            leaving.callback(self._forget, outer)
            leaving.callback(self._end_watcher)
            leaving.callback(self.restore_handlers)
            self._install_handlers()
            with suppress(RuntimeError):  # cannot start a thread: then a hang needs a second signal
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
            with suppress(BlockingIOError):  # full: there is already enough to wake it up
                os.write(self._write, b"\0")  # closing is not enough: an env's child process may have it open
            self._watcher.join()

    def _forget(self, outer: Signals | None) -> None:
        global _installed
        _installed = outer
        self._suspend = self._save = self._last_words = None
        self.close()

    def close(self) -> None:
        ends, self._read, self._write = (self._read, self._write), -1, -1
        for end in ends:
            if end >= 0:  # otherwise it was closed when this process was forked
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
        """The number of the first signal that asks us to stop; None if we finish first.

        The pipe gets every signal that has a Python handler: SIGCHLD, SIGALRM, SIGWINCH, …
        """
        while not self._left.is_set():
            (number,) = os.read(self._read, 1)
            if number in STOPPING and number in self._before:
                return number
        return None


_installed: Signals | None = None


def _in_a_forked_child() -> None:
    """A process forked by an env is not part of the run: restore the default handling of its signals."""
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
    calm: float = 0.0,
) -> Iterator[Signals]:
    """Handle signals inside. `suspend`, `save`: called with a reason when a signal asks for it.

    `last_words`: if given, the process may be killed as a last resort, after printing this.
    """
    signals = Signals(suspend, save, last_words, calm)
    if threading.current_thread() is not threading.main_thread():
        yield signals  # signals are not ours to handle
        return
    with signals.installed():
        yield signals


def complain(text: str) -> None:
    """Write to stderr, bypassing buffers and locks that a stuck thread may hold."""
    if sys.__stderr__ is not None:  # otherwise it is closed, and its descriptor may belong to any file
        with suppress(OSError, ValueError):
            os.write(sys.__stderr__.fileno(), printable(f"surefoot: {text}\n").encode())


def end_with_parent() -> None:
    """Get SIGTERM when the process that started this one ends, however it ends. Only Linux can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGTERM)
