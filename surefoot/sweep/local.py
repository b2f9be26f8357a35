"""A pool of processes on this machine, each on cores of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping

from surefoot.errors import SurefootError, UsageError
from surefoot.sweep.pool import Ended, Work

SERVER = (sys.executable, "-m", "surefoot.cli.zygote")
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class LocalPool:
    """Commands in processes that are forked from one which has imported PyTorch already (`surefoot.cli.zygote`).

    `cores_each`: how many cores a command is pinned to; 0: none in particular. `one_thread`: for every library.
    That process has a session of its own, so that a Ctrl-C reaches the sweep alone, which then stops its runs in order.
    """

    def __init__(self, slots: int, *, cores_each: int = 1, one_thread: bool = True) -> None:
        if not hasattr(os, "fork"):
            raise UsageError("a sweep needs a system that can fork processes (Linux, macOS)")
        self.slots = slots
        self._free = _split_cores(slots, cores_each)
        self._cores: dict[str, list[int]] = {}  # those of every running command, by name
        self._unread = b""
        self._ready = False
        self._server = subprocess.Popen(
            SERVER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(os.environ, one_thread),
            bufsize=0,
        )
        try:
            while not self._ready:
                self.poll(60.0)
        except BaseException:
            self.close()
            raise

    def submit(self, work: Work) -> None:
        work.output.parent.mkdir(parents=True, exist_ok=True)
        cores = self._free.pop(0)
        self._cores[work.name] = cores
        self._send({"name": work.name, "words": work.words, "output": os.fspath(work.output), "cores": cores})

    def poll(self, seconds: float) -> list[Ended]:
        assert self._server.stdout is not None
        answers = self._server.stdout.fileno()
        ready, _, _ = select.select([answers], [], [], seconds)
        if not ready:
            return []
        data = os.read(answers, 2**16)
        if not data:
            raise self._lost()
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._ready = self._ready or bool(lines)  # its first answer says that it has loaded everything
        found = [Ended(answer["name"], answer["code"]) for answer in map(json.loads, lines) if answer]
        for ended in found:
            self._free.append(self._cores.pop(ended.name))
        return found

    def stop(self, *, at_once: bool = False) -> None:
        self._send({"signal": int(signal.SIGKILL if at_once else signal.SIGTERM)})

    def save(self) -> None:
        self._send({"signal": int(signal.SIGUSR1)})

    def close(self) -> None:
        """Waits until every command has saved and ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def _send(self, message: dict[str, object]) -> None:
        assert self._server.stdin is not None
        try:
            self._server.stdin.write((json.dumps(message) + "\n").encode())
        except BrokenPipeError:
            raise self._lost() from None

    def _lost(self) -> SurefootError:
        code = self._server.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return SurefootError(f"the process that starts the runs {how}; the runs in progress are saved")


def _environment(inherited: Mapping[str, str], one_thread: bool) -> dict[str, str]:
    """OpenBLAS must have no threads when the process forks, so it never gets any; OpenMP starts its own on demand."""
    names = ONE_THREAD if one_thread else ("OPENBLAS_NUM_THREADS",)
    return {**inherited, **dict.fromkeys(names, "1")}


def _split_cores(slots: int, each: int) -> list[list[int]]:
    """The cores of every slot; none if there are too few, or if the system cannot pin processes."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not each or slots * each > len(cores):
        return [[] for _ in range(slots)]
    return [cores[slot * each : (slot + 1) * each] for slot in range(slots)]
