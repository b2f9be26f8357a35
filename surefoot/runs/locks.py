"""Locks a file until the process ends, however it ends: flock, or its equivalent on Windows."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

FAR = 2**30  # on Windows a locked byte cannot be read, so lock one past the end of the file


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")


def take(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock an open file; True if we hold the lock. Closing the file releases it. `shared`: only to check."""
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
    """Messages for a run if files cannot be locked."""
    if fcntl is not None or msvcrt is not None:
        return []
    return ["this system cannot lock files: nothing keeps a second process out of the same run directory"]
