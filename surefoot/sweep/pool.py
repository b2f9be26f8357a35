"""The interface of a pool, which carries out the runs of a sweep: on this machine (`local.py`) or on others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """One command, `surefoot WORDS…`, to be run in the current directory by its own process."""

    name: str  # unique in the pool
    words: tuple[str, ...]
    output: Path  # what the command prints is appended to this file
    again: tuple[str, ...] = ()  # the words that continue it after it was cut off


@dataclass(frozen=True)
class Ended:
    """A command that ended; `code` is its exit code, or minus the number of the signal that killed it.

    `lost`: why it is gone, if not by its own fault (its node died, say); it may go on elsewhere.
    """

    name: str
    code: int
    lost: str = ""


class Pool(Protocol):
    """Runs up to `slots` commands at a time. A run saves itself when asked to stop; a failed one affects no other."""

    @property
    def slots(self) -> int: ...

    def submit(self, work: Work) -> None:
        """Start a command; at most `slots` may run at a time."""
        ...

    def poll(self, seconds: float) -> list[Ended]:
        """The commands that have ended since the last call. Waits up to `seconds` for one."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """Ask every command to save and end, as SIGTERM does, or kill them. `poll` reports when they have."""
        ...

    def save(self) -> None:
        """Ask every command on this machine to write a checkpoint and go on: the machine may be taken away soon."""
        ...

    def close(self) -> None:
        """Release everything: no process is left afterwards."""
        ...
