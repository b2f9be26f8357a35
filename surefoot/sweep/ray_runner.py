"""The part of a Ray pool that works on a node: carries out one run at a time, in a copy of its directory."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from surefoot import __version__
from surefoot.errors import SurefootError
from surefoot.runs import RunDirectory
from surefoot.runs.hold import LOCK, Hold
from surefoot.sweep.folder import OUTPUT
from surefoot.sweep.live_copy import Changes, Marks, find_changes, write_changes
from surefoot.sweep.local import LocalPool
from surefoot.sweep.pool import Pool, Work

GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
HOMES = "surefoot-ray-home-"  # prefix of the temporary folders with copies
COPY = "run"  # the copy in such a folder
YOUNG = 60.0  # seconds in which a folder may belong to a process that is about to lock it


@dataclass(frozen=True)
class Order:
    """A run to be carried out. `content`: what its directory holds already; none: the nodes share the directory."""

    name: str
    words: tuple[str, ...]
    directory: str  # on the machine of the sweep
    content: Changes | None
    probe: str  # a file that every node sees if the folder is shared
    working_directory: str
    one_thread: bool
    gpus: bool  # whether it has reserved any
    version: str = __version__


@dataclass(frozen=True)
class Report:
    """How a run goes. `code`: its exit code, once it has ended. `changes`: none if the directory is shared."""

    code: int | None
    changes: Changes | None


class Runner:
    """A Ray actor. Its runs are the children of a `LocalPool`: they save and end if this process is gone."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._home: Home | None = None
        self._directory: RunDirectory | None = None
        self._code: int | None = None

    def start(self, order: Order) -> str:
        """Start a run; returns the name of the node."""
        host = socket.gethostname()
        if order.version != __version__:
            raise SurefootError(
                f"the node {host} has surefoot {__version__}, and this is {order.version}; install the same version"
            )
        if order.content is None and not os.path.exists(order.probe):
            raise SurefootError(
                f"the node {host} does not see {os.path.dirname(order.probe)}; leave out --shared, and the runs are "
                "copied from the nodes"
            )
        self._code = None
        if order.content is None:
            directory = RunDirectory(Path(order.directory))
        else:
            self._home = self._home or Home()
            directory = self._directory = self._home.receive(order.content)
        if self._pool is None:
            with suppress(OSError):  # where the nodes do not have it, runs must not depend on it
                os.chdir(order.working_directory)
            if not order.gpus:  # those of a node belong to whoever has reserved them
                os.environ.update(dict.fromkeys(GPUS, ""))
            self._pool = LocalPool(1, cores_each=0, one_thread=order.one_thread)
        words = tuple(moved(word, order.directory, str(directory.path)) for word in order.words)
        self._pool.submit(Work(order.name, words, directory.path / OUTPUT))
        return host

    def look(self, known: Marks, seconds: float) -> Report:
        """What is new since the marks were taken. Waits up to `seconds` for the end of the run."""
        assert self._pool is not None
        if self._code is None:
            for ended in self._pool.poll(seconds):
                self._code = ended.code
        code = self._code  # read before the files, so that they are complete if it has ended
        return Report(code, None if self._directory is None else find_changes(self._directory, known))

    def stop(self, at_once: bool) -> None:
        if self._pool is not None and self._code is None:
            self._pool.stop(at_once=at_once)

    def leave(self) -> None:
        """Wait for the run to end, then remove its copy."""
        if self._pool is not None:
            self._pool.close()
        if self._home is not None:
            self._home.remove()


class Home:
    """A temporary folder for one copy at a time. Those of processes that were killed are removed by the next one."""

    def __init__(self) -> None:
        for other in Path(tempfile.gettempdir()).glob(f"{HOMES}*"):
            _remove_abandoned(other)
        self.path = Path(tempfile.mkdtemp(prefix=HOMES))
        self._hold = Hold(self.path)

    def receive(self, content: Changes) -> RunDirectory:
        """Replace the copy by another one."""
        directory = RunDirectory(self.path / COPY)
        shutil.rmtree(directory.path, ignore_errors=True)
        write_changes(directory, content)
        return directory

    def remove(self) -> None:
        self._hold.release()
        shutil.rmtree(self.path, ignore_errors=True)


def _remove_abandoned(home: Path) -> None:
    """Unless its runner lives, or its run is still saving."""
    with suppress(SurefootError, OSError):
        if time.time() - home.stat().st_mtime < YOUNG:
            return
        hold = Hold(home)
        try:
            if {*os.listdir(home)} <= {COPY, LOCK} and not RunDirectory(home / COPY).is_locked():
                shutil.rmtree(home)
        finally:
            hold.release()


def moved(word: str, here: str, there: str) -> str:
    """A word of a command for a run that is in another place."""
    return {here: there, f"--run-dir={here}": f"--run-dir={there}"}.get(word, word)
