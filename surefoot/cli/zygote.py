"""Runs many commands, each in a process of its own, forked from this one, which has imported PyTorch once for all.

`surefoot.sweep.local` starts it as `python -m surefoot.cli.zygote` and writes one JSON object per line to its stdin:
`{"name": …, "words": […], "output": FILE, "cores": […]}` starts a command, `{"signal": N}` goes to all that are
running. It answers on stdout with `{}` when it is ready and `{"name": …, "code": N}` when a command has ended. When
stdin closes, because the sweep ended or was killed, it asks its children to save and end, and ends with the last of
them.

This process imports modules, and starts no threads and executes none of the user's code. So a forked command behaves
like a fresh process, but starts sooner.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from surefoot.cli.forwarding import warn
from surefoot.cli.in_process import exit_code_of, print_to
from surefoot.cli.limits import require_room_for_torch
from surefoot.errors import SurefootError
from surefoot.text import print
from surefoot.training.life.signals import WARNING, end_with_parent

PRELOADED = (  # what every run imports
    "surefoot.cli.train",
    "surefoot.cli.resume",
    "surefoot.training.life.launch",
    "surefoot.engine.native.engine",
    "surefoot.engine.torch.engine",
    "surefoot.envs.gym_backend",
    "surefoot.envs.native_envs",
    "gymnasium.envs.classic_control",
    "torch.fx.experimental.symbolic_shapes",  # PyTorch imports it, and sympy with it, for the first network
    "tomli_w",
)


@dataclass(frozen=True)
class Request:
    """A command to run, from a line of JSON."""

    name: str
    words: tuple[str, ...]
    output: str
    cores: tuple[int, ...]


def preload() -> None:
    """Import what runs need. macOS does not support a fork after some of these imports, so it goes without."""
    if sys.platform != "linux":
        return
    require_room_for_torch()
    for module in PRELOADED:
        with suppress(ImportError):  # a run that needs it says so
            import_module(module)


class Zygote:
    """Forks a child per request. `serve` returns twice: in each child with its request, and at the end with none."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests, self._answers = requests, answers
        self._children: dict[int, str] = {}  # names by process id
        self._unread = b""
        self._open = True
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)

    def serve(self) -> Request | None:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, *WARNING):
            signal.signal(number, self._note)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        end_with_parent()
        self._answer({})
        while self._open or self._children:
            ready, _, _ = select.select([self._woken, *([self._requests] if self._open else [])], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            self._reap()
            if self._requests in ready:
                for line in self._lines():
                    found = self._take(line)
                    if found is not None:
                        return found
        return None

    def _note(self, number: int, frame: object) -> None:
        if number not in (signal.SIGCHLD, *WARNING):  # the sweep decides about a warning
            self._end()

    def _end(self) -> None:
        """A killed sweep signals us and closes the pipe. Pass on one signal: a second would cut saving short."""
        was_open, self._open = self._open, False
        if was_open:
            self._tell_all(signal.SIGTERM)

    def _lines(self) -> Iterator[bytes]:
        data = os.read(self._requests, 2**16)
        if not data:
            self._end()
        *whole, self._unread = (self._unread + data).split(b"\n")
        yield from whole

    def _take(self, line: bytes) -> Request | None:
        """The request, in the child that is forked for it."""
        found = json.loads(line)
        if "signal" in found:
            if found["signal"] in WARNING:
                warn(self._children, found["signal"])
            else:
                self._tell_all(found["signal"])
            return None
        request = Request(found["name"], tuple(found["words"]), found["output"], tuple(found["cores"]))
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            with open(request.output, "a", encoding="utf-8") as file:
                file.write(f"surefoot: no process could be started: {error.strerror}\n")
            self._answer({"name": request.name, "code": 1})
            return None
        if pid:
            self._children[pid] = request.name
            return None
        self._become(request)
        return request

    def _become(self, request: Request) -> None:
        """In the child: drop everything that only the zygote needs."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, *WARNING):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        parent = os.getppid()
        end_with_parent()
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
        for pipe in (self._requests, self._answers, self._woken, self._wakes):
            os.close(pipe)
        print_to(request.output)
        if request.cores and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):  # a core that went away
                os.sched_setaffinity(0, request.cores)

    def _tell_all(self, number: int) -> None:
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            name = self._children.pop(pid, None)
            if name is not None:
                self._answer({"name": name, "code": os.waitstatus_to_exitcode(status)})

    def _answer(self, message: dict[str, object]) -> None:
        with suppress(OSError):  # the sweep is gone
            os.write(self._answers, (json.dumps(message) + "\n").encode())


def run() -> int:
    # The pipes get numbers of their own: 0 and 1 are a command's standard streams.
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    preload()
    gc.freeze()  # so that no child's garbage collector writes to, and thereby copies, what all of them share
    request = Zygote(requests, answers).serve()
    if request is not None:
        _finish(request)
    return 0


def _finish(request: Request) -> NoReturn:
    """In the child: run the command and end as Python would, except for freeing every module one by one.

    That would take longer than a short run.
    """
    code = exit_code_of(request.words)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        sys.exit(run())
    except SurefootError as error:
        print(f"surefoot: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
