"""Commands that the page starts: `surefoot video` and `surefoot replay`, one of a kind at a time, at low priority.

Such a process cannot ask the user and gets no `--trust`, so code that a run names is executed only if this user made
the run (`surefoot.training.life.trust`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import dataclass

PATIENCE = 600.0  # seconds that a command may take


@dataclass(frozen=True)
class Outcome:
    code: int | None
    out: str
    why: str  # its error message, if it failed


async def surefoot(*words: str) -> Outcome:
    """Run a command to its end; if this task is cancelled or patience runs out, it is killed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "surefoot", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with suppress(OSError, AttributeError):  # a system without priorities
        os.setpriority(os.PRIO_PROCESS, process.pid, 10)  # training needs the cores
    try:
        told, said = await asyncio.wait_for(process.communicate(), PATIENCE)
    except TimeoutError:
        told, said = b"", f"surefoot: it was not finished after {PATIENCE:g} seconds".encode()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return Outcome(process.returncode, told.decode(errors="replace"), reason(said.decode(errors="replace")))


def reason(said: str) -> str:
    """The command's error message."""
    _, found, rest = said.rpartition("surefoot: ")
    return (rest if found else said).strip()[:2000] or "it could not be done"
