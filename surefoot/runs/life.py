"""Whether a run is still in progress, judging by its directory: on this machine, on another one, or after a kill."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from time import time
from typing import Literal

from surefoot.errors import CheckpointError
from surefoot.runs.directory import RunDirectory
from surefoot.runs.files import read_json, read_regular
from surefoot.runs.hold import LOCK

State = Literal["running", "finished", "stopped", "crashed", "unknown"]
ENDED: dict[object, State] = {"done": "finished", "interrupted": "stopped", "failed": "crashed"}
SILENT = 600.0  # seconds without a write after which a run whose lock cannot be seen no longer counts as running


@dataclass(frozen=True)
class Life:
    """The state of a run, and when it last wrote anything (seconds since 1970; None: never).

    `running`: a process holds it. `finished`, `stopped` (it can be resumed) and `crashed` (it failed or was killed) are
    over. `unknown`: the lock cannot be seen from here, and nothing was written for ten minutes.
    """

    state: State
    heartbeat: float | None

    @property
    def alive(self) -> bool:
        return self.state == "running"


def read_life(run: RunDirectory, said: object = None) -> Life:
    """`said`: the state in its `status.json`, for callers who have read that already."""
    if said is None:
        said = _said(run)
    heartbeat = last_write(run)
    if said in ENDED:
        return Life(ENDED[said], heartbeat)
    if said not in ("running", "degraded"):
        return Life("unknown", heartbeat)
    held = run.lock_state()
    if held:
        return Life("running", heartbeat)
    if held is False and _held_here(run):  # the kernel frees a lock only when its process has ended
        return Life("crashed", heartbeat)
    fresh = heartbeat is not None and time() - heartbeat < SILENT
    return Life("running" if fresh else "unknown", heartbeat)


def _said(run: RunDirectory) -> object:
    try:
        return read_json(run.status).get("state")
    except CheckpointError:
        return None


def _held_here(run: RunDirectory) -> bool:
    """Whether the last process to hold the run ran on this machine; assumed if nothing says otherwise."""
    try:
        text = read_regular(run.path / LOCK, 1000).decode(errors="replace")
    except OSError:
        return True
    named = re.search(r" on (\S+)$", text.strip())
    return named is None or named[1] == socket.gethostname()


def last_write(run: RunDirectory) -> float | None:
    """When any of the files that a run keeps writing to last changed."""
    times = []
    for path in (run.status, run.metrics, run.timings, run.episodes, run.log, run.checkpoints):
        try:
            times.append(os.stat(path).st_mtime)
        except OSError:
            continue
    return min(max(times), time()) if times else None  # a clock that is ahead must not keep a run alive
