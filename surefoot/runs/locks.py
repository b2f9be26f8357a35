"""A file that one process holds until it ends, however it ends: flock, or what Windows has instead of it."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

FAR = 2**30  # the byte that is locked on Windows, where a locked one cannot be read: past everything that is written


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")


def take(descriptor: int, *, shared: bool = False) -> bool:
    """Whether the lock on an open file is ours now; closing the file gives it back. `shared`: only to look."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(descriptor, FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return False
    return True


def complaints() -> list[str]:
    """What a run should say where files cannot be locked."""
    if fcntl is not None or msvcrt is not None:
        return []
    return ["this system cannot lock files: nothing keeps a second process out of the same run directory"]
