"""A scheduler's warning (SIGUSR1, SIGUSR2) reaches the process that it was sent to; this passes it on to the runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def warn(pids: Iterable[int], number: int) -> None:
    """Send the signal to those that handle it. One that is just starting would die of it and has nothing to save."""
    for pid in pids:
        if _handles(pid, number):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def children() -> list[int]:
    """The processes that the main thread of this one has started; only Linux tells."""
    own = os.getpid()
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()]
    return []


def _handles(pid: int, number: int) -> bool:
    with suppress(OSError):
        found = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
    return False
