"""What carries out the runs of a sweep. `local.py` is one such pool; another one (Slurm, Ray) implements the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Work:
    """One command, `surefoot WORDS…`, to be run in the present directory by a process of its own."""

    name: str  # unique in the pool
    words: tuple[str, ...]
    output: Path  # what the command prints is appended to this file


@dataclass(frozen=True)
class Ended:
    """A command that ended; `code` is its exit code, or minus the number of the signal that killed it."""

    name: str
    code: int


class Pool(Protocol):
    """Runs so many commands at a time. A run saves itself when asked to stop, and one that fails affects no other."""

    slots: int

    def submit(self, work: Work) -> None:
        """Start a command; no more than `slots` are under way."""
        ...

    def poll(self, seconds: float) -> list[Ended]:
        """What has ended since the last call; waits for at most so long."""
        ...

    def stop(self, *, at_once: bool = False) -> None:
        """Ask every command to save and end, as SIGTERM does, or kill them. `poll` tells when they have."""
        ...

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        ...
