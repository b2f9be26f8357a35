"""Cores and threads that this process may use. Imports nothing heavy: it is needed before anything heavy is loaded."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

NO_MORE = "the system starts no more processes or threads here; raise the limit (ulimit -u, or the container's)"
SPARE = 2  # threads that a run needs itself: one that watches for signals, and perhaps a tracker's


def is_out_of_processes(error: BaseException) -> bool:
    """Whether a process or a thread could not be started. A fork raises an OSError, Python's threads a RuntimeError."""
    if isinstance(error, OSError):
        return error.errno == errno.EAGAIN
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def allowed_cores() -> int:
    """The cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """The cores that this process may use, within its container's CPU quota."""
    cores = allowed_cores()
    with suppress(OSError, ValueError):  # "max 100000" means no limit
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split())
        cores = min(cores, max(1, round(quota / period)))
    return cores


def most_threads() -> int:
    """The cores that this process may use, or what OMP_NUM_THREADS allows of them."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    cores = usable_cores()
    return max(1, min(cores, int(said))) if said.isdecimal() else cores


def startable(wanted: int) -> int:
    """How many threads, from 1 to `wanted`, can be used while leaving some to spare."""
    done, started = Event(), list[Thread]()
    try:
        while len(started) < wanted - 1 + SPARE and wanted > 1:
            thread = Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # a limit on threads (ulimit -u, a container's), or no memory for another stack
        pass
    finally:
        done.set()
        for thread in started:
            thread.join()
    return max(1, min(wanted, 1 + len(started) - SPARE))
