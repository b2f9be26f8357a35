"""System limits of this process. Imports nothing heavy, because it is used before anything heavy is loaded."""

from __future__ import annotations

from threading import Event, Thread

SPARE = 2  # threads that a run needs itself: one that watches for signals, and perhaps a tracker's


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
