"""PyTorch's OpenMP threads after a fork.

GNU's runtime keeps its threads for the next parallel region. A forked child has only the thread that forked and would
wait for the others forever. So we release them before a fork; parent and child start new ones when they need them.

`import surefoot` loads this module, because a user's own work with PyTorch may have started threads before ours does.
Hence it must not import PyTorch itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from surefoot.errors import UsageError

PAUSE_SOFT = 1  # omp_pause_soft of OpenMP 5.0
FORKED_NOT_EXECUTED = 0x40  # PF_FORKNOEXEC of Linux

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
            'multiprocessing.get_context("spawn"), import surefoot before PyTorch, or give threads=1'
        )


def _runtime() -> ctypes.PyDLL | None:
    """Finds symbols of the runtime that PyTorch is linked with. Calls hold the GIL, so no other thread can fork.

    None if there is nothing to release: PyTorch is not loaded, or its runtime (LLVM's, Intel's) restarts in a child by
    itself.
    """
    torch = sys.modules.get("torch._C")
    if torch is None or torch.__file__ is None:
        return None
    runtime = ctypes.PyDLL(torch.__file__)
    return None if hasattr(runtime, "__kmpc_fork_call") else runtime


def _release() -> bool:
    """Whether no thread of PyTorch's is left."""
    runtime = _runtime()
    if runtime is None:
        return True
    try:
        pause = runtime.omp_pause_resource_all
    except AttributeError:  # before OpenMP 5.0
        return False
    return bool(pause(PAUSE_SOFT) == 0)


def _before_fork() -> None:
    global _let_go
    _let_go = can_share() and _release()  # in a stranded process, releasing waits for threads that do not exist


def _in_child() -> None:
    global _stranded
    _stranded = _stranded or not _let_go


def _came_too_late() -> bool:
    """Whether this process may have been forked from one that had PyTorch but not yet this module."""
    if _runtime() is None or not _forked():
        return False
    # The server of multiprocessing's "forkserver" forks before it has PyTorch.
    return not any(word.startswith("from multiprocessing.forkserver") for word in sys.orig_argv)


def _forked() -> bool:
    """Whether this process was forked and has executed no other program since. Only Linux tells."""
    try:
        stat = Path("/proc/self/stat").read_bytes()
    except OSError:
        return False
    flags = stat.rpartition(b")")[2].split()[6]  # the name, in parentheses, may contain anything
    return bool(int(flags) & FORKED_NOT_EXECUTED)


if hasattr(os, "register_at_fork"):
    _stranded = _came_too_late()
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
