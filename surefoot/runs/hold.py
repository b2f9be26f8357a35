"""Holds a run directory for one process: locked against others, and found again after a rename."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path
from time import sleep
from weakref import WeakSet

from surefoot.errors import BusyError, GoneError, UsageError
from surefoot.runs import locks
from surefoot.runs.locks import fcntl

LOCK = ".lock"


class Hold:
    """Keeps the directory open, so that its descriptor survives a rename. `locked`: no other process may hold it.

    It is held as long as this object is referenced. The operating system frees the lock however this process ends. A
    forked child closes its copies at once, so that a child process of an env cannot keep the run locked.
    """

    def __init__(self, path: Path, *, locked: bool = True, instead: str = "train into another --run-dir") -> None:
        self._instead = instead  # what to do where another process holds it
        self._handles: list[int] = []
        self._folder: int | None = None
        try:
            if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a directory, nor rename one in use
                self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                self._handles.append(self._folder)
                self._identity = _identity(os.fstat(self._folder))  # nobody else's while the directory is open
            if locked:
                self._lock(path)
        except OSError as error:
            self.release()
            raise UsageError(f"cannot write to the run {path}: {error.strerror}") from None
        except BusyError:
            self.release()
            raise
        _held.add(self)

    def _lock(self, path: Path) -> None:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        self._handles.append(lock)
        for patience in (0.05, 0.05, 0.05, 0.0):  # retry: is_locked in another process holds it for microseconds
            if locks.take(lock):
                break
            sleep(patience)
        else:
            os.lseek(lock, 0, os.SEEK_SET)
            holder = os.read(lock, 1000).decode(errors="replace").strip() or "another process"
            raise BusyError(f"{path} is in use by {holder}; wait for it, or {self._instead}")
        with suppress(OSError):  # on a full disk, the lock holds without a name in it
            os.ftruncate(lock, 0)
            os.lseek(lock, 0, os.SEEK_SET)
            os.write(lock, f"pid {os.getpid()} on {socket.gethostname()}".encode())

    def find(self, path: Path) -> Path:
        """The current path of the directory, last seen at `path`; GoneError if it was deleted."""
        folder = self._folder
        if folder is None:
            if not path.is_dir():
                raise GoneError(f"the run directory {path} is gone: it was deleted or moved")
            return path
        try:
            if _identity(os.stat(path)) == self._identity:
                return path
        except OSError:
            pass
        try:
            place = _current_path(folder)
            os.stat(place)
            deleted = os.fstat(folder).st_nlink == 0
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return path  # the disk does not answer; the next write will report it
            deleted = True
        if deleted:
            raise GoneError(f"the run directory {path} is gone: it was deleted, or moved to another disk")
        with suppress(OSError, ValueError):  # the working directory is gone, or the path is not below it
            if not path.is_absolute():
                return place.relative_to(Path.cwd())
        return place

    def release(self) -> None:
        while self._handles:
            os.close(self._handles.pop())

    __del__ = release


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_dev


def _current_path(folder: int) -> Path:
    """The system's path of an open directory; for a deleted one, the path does not exist."""
    if fcntl is not None and hasattr(fcntl, "F_GETPATH"):  # macOS
        raw: bytes = fcntl.fcntl(folder, fcntl.F_GETPATH, bytes(1024))
        return Path(os.fsdecode(raw.rstrip(b"\0")))
    return Path(os.readlink(f"/proc/self/fd/{folder}"))


_held: WeakSet[Hold] = WeakSet()


def _in_a_forked_child() -> None:
    for hold in list(_held):
        hold.release()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_in_a_forked_child)
