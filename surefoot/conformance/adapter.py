"""An adapter as seen from here: its process, its answers, its deadlines."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, TypedDict

from surefoot.conformance.child import FUNCTIONS
from surefoot.errors import SurefootError, UsageError, did_you_mean

CHILD, OWN = (Path(__file__).with_name(name) for name in ("child.py", "own.py"))
PACKAGE = Path(__file__).parent.parent


class AdapterError(SurefootError):
    """A call did not give an answer: the adapter raised, crashed or took too long."""


class About(TypedDict):
    functions: list[str]
    own: list[str]  # every public name that it could call
    versions: dict[str, str]
    notes: dict[str, str]  # check -> how the library was used, or why it is not checked


class Request(TypedDict, total=False):
    function: str
    task: str
    arrays: list[list[list[float]]]
    folder: str
    options: dict[str, float]


class Adapter:
    """The process that runs an adapter. After a crash or a missed deadline the next call starts a new one."""

    def __init__(self, file: Path, python: str, timeout: float) -> None:
        self.file, self.python, self.timeout = file, python, timeout
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Self:
        try:
            self.about = self._start()
            if not self.about["functions"]:
                near = next((hint for name in self.about["own"] if (hint := did_you_mean(name, FUNCTIONS))), "")
                raise UsageError(f"{self.file} defines none of the functions {', '.join(FUNCTIONS)}{near}")
        except BaseException as error:
            self.__exit__()
            if isinstance(error, AdapterError):
                hint = "; --python names the Python to use" if "ModuleNotFoundError" in str(error) else ""
                raise UsageError(f"{self.file} cannot be loaded: {error}{hint}") from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._said.close()

    def ask(self, request: Request) -> object:
        """The adapter's answer: numbers, nested lists of them, or texts."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died meanwhile, as the missing answer will show
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _start(self) -> About:
        self._lines = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                [self.python, str(CHILD), str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=_environment(self.file),
                encoding="utf-8",
                start_new_session=True,  # so that processes of the adapter's own can be ended with it
            )
        except OSError as error:
            raise UsageError(f"--python {self.python} cannot be started: {error.strerror}") from None
        assert self._process.stdout is not None
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()
        about: About = self._answer()  # type: ignore[assignment]  # our own child wrote it
        return about

    def _answer(self) -> object:
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            self._stop()
            raise AdapterError(f"no answer within {self.timeout:g} s (--timeout gives it more)") from None
        if line is None:
            code, said = self._stop(grace=10.0), self._last_line()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise AdapterError(f"the adapter's process ended ({how}){': ' if said else ''}{said}")
        reply = json.loads(line)
        if "error" in reply:
            raise AdapterError(reply["error"])
        return reply["answer"]

    def _stop(self, grace: float = 0.0) -> int:
        """End the process, after this many seconds, and those that it started; returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return code

    def _last_line(self) -> str:
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 4096))
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def _read(stream: IO[str], lines: queue.SimpleQueue[str | None]) -> None:
    with suppress(ValueError, OSError):  # closed by _stop
        for line in stream:
            lines.put(line)
    lines.put(None)


def _environment(file: Path) -> dict[str, str]:
    """One thread suffices for networks this small. Our own adapter finds the surefoot that is running now."""
    own = {"OMP_NUM_THREADS": "1", **os.environ}
    if file == OWN:
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    return own
