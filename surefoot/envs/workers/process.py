"""One worker as its parent sees it: a process, a socket, a deadline, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from surefoot.envs.workers.memory import IDLE
from surefoot.envs.workers.messages import decode
from surefoot.errors import SurefootError
from surefoot.limits import NO_MORE, is_out_of_processes

if TYPE_CHECKING:
    from surefoot.envs.workers.messages import Problem
    from surefoot.types import Array

# The worker must find the same packages before it can import surefoot.
BOOT = "import sys; a = sys.argv[1:6]; sys.path[:] = sys.argv[6:]; del sys.argv[1:]; "
BOOT += "from surefoot.envs.workers.serve import serve; serve(*map(int, a))"


class Lost(Exception):
    """A worker is dead or does not answer. `.trace`: its last known stack trace, if any."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = " (did the machine run out of memory?)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


class Worker:
    """One process, its socket, and the deadline for replies: `timeout` seconds without any progress."""

    def __init__(self, number: int, envs: range, timeout: float, counts: Array, memory: int) -> None:
        self.number, self.envs, self.timeout, self.memory = number, envs, timeout, memory
        self.counts = counts[envs.start : envs.stop]
        self.process: subprocess.Popen[bytes] | None = None
        self.awaited = False  # whether a reply is expected
        self.lost = Lost("is not there")  # why there is no process; replaced when it starts

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        self.crash = os.memfd_create("surefoot-crash")
        self.sock, self.buffer, self.awaited = ours, bytearray(), False
        ours.settimeout(min(0.25, self.timeout / 4))
        self.counts[:] = (-1, 0, IDLE)
        passed = (theirs.fileno(), self.memory, self.crash)
        watch = int(threading.current_thread() is not threading.main_thread())
        # Like multiprocessing, pass on the parent's options for assertions and warnings (-O, -W, -X dev).
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        words = [*map(str, (*passed, os.getpid(), watch)), *sys.path]
        command = [sys.executable, *flags, "-P", "-c", BOOT, *words]
        try:
            # In its own session, Ctrl-C and Ctrl-Z at the terminal do not reach it, and its children end with it.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True)
        except BaseException as error:
            ours.close()
            os.close(self.crash)
            if isinstance(error, OSError):
                why = NO_MORE if is_out_of_processes(error) else error
                raise SurefootError(f"env worker {self.number} could not be started: {why}") from error
            raise
        finally:
            theirs.close()

    def send(self, message: bytes, timeout: float | None = None) -> None:
        if self.process is None:
            raise self.lost
        while self.awaited:  # an interrupt left a reply unread
            self.receive()
        self.patience = self.timeout if timeout is None else timeout
        self.progress, self.deadline = self.counts.tobytes(), time.monotonic() + self.patience
        self.awaited = True
        view = memoryview(message)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except TimeoutError:
                self.still_there()
            except (BrokenPipeError, ConnectionResetError):
                raise self._died() from None

    def receive(self) -> tuple[bytes, Any]:
        """(tag, value) of the reply. Raises Lost if the worker is lost."""
        if self.process is None:
            raise self.lost
        # Remove a message from the buffer only once it is complete: a signal handler may raise in between.
        self._fill(1)
        tag, size, value = bytes(self.buffer[:1]), 1, None
        if tag.isupper():
            self._fill(9)
            size = 9 + int.from_bytes(self.buffer[1:9], "little")
            self._fill(size)
            value = decode(json.loads(self.buffer[9:size]))
        self.awaited = False
        del self.buffer[:size]
        return tag.lower(), value

    def _fill(self, size: int) -> None:
        while len(self.buffer) < size:
            try:
                chunk = self.sock.recv(4096 if size < 4096 else 1 << 20)
            except TimeoutError:
                self.still_there()
                continue
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise self._died()
            self.buffer += chunk

    def still_there(self) -> None:
        """Raise Lost if the worker is dead or has been silent for too long."""
        if self._exited():  # and a child of it holds the socket open
            raise self._died()
        now, progress = time.monotonic(), self.counts.tobytes()
        if self.patience and progress != self.progress:
            self.progress, self.deadline = progress, now + self.patience
        elif now > self.deadline:
            raise self._hangs()

    def _exited(self) -> bool:
        """Check without reaping it: its process group id must not be reused before the group is killed."""
        assert self.process is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _died(self) -> Lost:
        until = time.monotonic() + 1.0
        while not self._exited() and time.monotonic() < until:
            time.sleep(0.005)
        exited, trace = self._exited(), self._trace()
        code = self.end()
        self.lost = Lost(how_it_ended(code) if exited else "closed its connection", trace)
        return self.lost

    def _hangs(self) -> Lost:
        assert self.process is not None
        until = time.monotonic()
        if self.patience:
            self.process.send_signal(signal.SIGUSR1)  # it writes its stack trace, if it still can
            until += 0.5
        while not self._trace() and not self._exited() and time.monotonic() < until:
            time.sleep(0.01)
        trace = self._trace()
        self.end()
        self.lost = Lost(f"did not answer within {self.patience:g} s (--env-timeout)", trace)
        return self.lost

    def _trace(self) -> str:
        text = os.pread(self.crash, 20_000, 0).decode(errors="replace")
        return text.partition("\nExtension modules:")[0]

    def end(self) -> int:
        """Kill the worker and its children; returns its exit code. Does nothing the second time."""
        process, self.process = self.process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self.sock.close()
        os.close(self.crash)
        return code

    def quit(self) -> None:
        with suppress(OSError):
            if self.process is not None:
                self.sock.send(b"q")

    def left(self, deadline: float) -> Problem | None:
        """Wait for the worker to exit, and kill it if it does not. Returns the error of closing its envs, if any."""
        problem: Problem | None = None
        self.patience, self.deadline = 0.0, deadline
        with suppress(Lost):  # it is supposed to exit
            while True:
                tag, value = self.receive()
                problem = value if tag == b"c" else problem
        self.end()
        return problem
