"""PyTorch's OpenMP threads where they cannot be had: after a fork, and where the system refuses to start them.

GNU's runtime keeps its threads for the next parallel region. A forked child has only the thread that forked and would
wait for the others forever. So they are let go before a fork; parent and child start new ones when they need them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import torch

from surefoot.errors import UsageError

PAUSE_SOFT = 1  # omp_pause_soft of OpenMP 5.0

_let_go = False  # whether the fork in progress leaves no threads behind
_stranded = False  # this process was forked from one whose threads could not be let go


def require_threads(number: int) -> None:
    """An error where so many PyTorch threads would never come back from their first common task."""
    if number > 1 and _stranded:
        raise UsageError(
            "PyTorch cannot use more than one thread in this forked process; start processes with "
            'multiprocessing.get_context("spawn"), or give threads=1'
        )


def startable(wanted: int) -> int:
    """How many threads, `wanted` at most, this process can have. GNU's runtime ends it where one cannot be started."""
    if _stranded:
        return 1
    done, started = Event(), list[Thread]()
    try:
        for _ in range(wanted - 1):
            thread = Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # a limit on threads, or no memory for another stack
        pass
    finally:
        done.set()
        for thread in started:
            thread.join()
    return 1 + len(started)


def _pause() -> Callable[[int], int] | None:
    """What lets the threads of PyTorch's own runtime go; None where there is no such function."""
    found: Any = getattr(_runtime(), "omp_pause_resource_all", None)
    return found  # type: ignore[no-any-return]


def _runtime() -> ctypes.PyDLL:
    """Symbols of whatever PyTorch was linked with. Its calls keep the GIL, so that nobody else forks meanwhile."""
    assert torch._C.__file__ is not None
    return ctypes.PyDLL(torch._C.__file__)


def _before_fork() -> None:
    global _let_go
    pause = _pause()
    _let_go = pause is not None and pause(PAUSE_SOFT) == 0


def _in_child() -> None:
    global _stranded
    _stranded = _stranded or not _let_go


# The runtimes of LLVM and Intel start anew in a child by themselves.
if hasattr(os, "register_at_fork") and not hasattr(_runtime(), "__kmpc_fork_call"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
