"""PyTorch's OpenMP threads after a fork.

GNU's runtime keeps its threads for the next parallel region. A forked child has only the thread that forked and would
wait for the others forever. So we release them before a fork; parent and child start new ones when they need them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch

from surefoot.errors import UsageError

PAUSE_SOFT = 1  # omp_pause_soft of OpenMP 5.0

_let_go = False  # whether the threads were released for the fork in progress
_stranded = False  # this process was forked from one whose threads could not be released


def can_share() -> bool:
    """Whether this process may give PyTorch more than one thread."""
    return not _stranded


def require_threads(number: int) -> None:
    """Raise an error if this many PyTorch threads would hang at their first parallel region."""
    if number > 1 and not can_share():
        raise UsageError(
            "PyTorch cannot use more than one thread in this forked process; start processes with "
            'multiprocessing.get_context("spawn"), or give threads=1'
        )


def _pause() -> Callable[[int], int] | None:
    """The function that releases the threads of PyTorch's OpenMP runtime; None if there is none."""
    found: Callable[[int], int] | None = getattr(_runtime(), "omp_pause_resource_all", None)
    return found


def _runtime() -> ctypes.PyDLL:
    """Finds symbols of the runtime that PyTorch is linked with. Calls hold the GIL, so no other thread can fork."""
    assert torch._C.__file__ is not None
    return ctypes.PyDLL(torch._C.__file__)


def _before_fork() -> None:
    global _let_go
    pause = _pause()
    _let_go = pause is not None and pause(PAUSE_SOFT) == 0


def _in_child() -> None:
    global _stranded
    _stranded = _stranded or not _let_go


# The runtimes of LLVM and Intel restart in a child by themselves.
if hasattr(os, "register_at_fork") and not hasattr(_runtime(), "__kmpc_fork_call"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
