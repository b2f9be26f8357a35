"""What a Slurm job of a sweep does: it starts its run or continues it, and queues itself again when its time is up.

`surefoot.sweep.slurm_pool` submits a `SlurmRun` for each run. submitit calls it in the job, and once more whenever
Slurm has queued the job again. So the run's directory decides what is left to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import NoReturn

from surefoot.cli.in_process import exit_code_of, print_to
from surefoot.errors import BusyError, SurefootError
from surefoot.runs import RunDirectory
from surefoot.sweep.pool import Work
from surefoot.sweep.progress import saved_step
from surefoot.sweep.slurm_pool import NO_TIME, RETRIES
from surefoot.sweep.slurm_queue import INTERRUPTED
from surefoot.text import print
from surefoot.training.life.signals import WARNING, Interrupted

ORPHAN = 600.0  # seconds that a job waits for a process that still holds its run


class TimeIsUp:
    """Slurm's warning before the time limit: the run saves and ends as it does on SIGTERM, and we know why."""

    def __init__(self) -> None:
        self.warned = False

    def warn(self, number: int, frame: FrameType | None) -> None:
        if not self.warned:  # a second SIGTERM would mean haste
            self.warned = True
            signal.raise_signal(signal.SIGTERM)

    def install(self) -> None:
        """Instead of submitit's handlers, which would ignore SIGTERM and leave without saving."""
        signal.signal(signal.SIGTERM, _leave)  # until the run has its own handler
        for number in WARNING:
            if signal.getsignal(number) is not signal.SIG_DFL:  # the one that submitit asks Slurm for
                signal.signal(number, self.warn)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Not SystemExit: it may come while envs are made or replayed, and sys.exit() there is an error of the env.
    raise Interrupted("before the first update", 128 + number)


@dataclass(frozen=True)
class SlurmRun:
    """The job of one run. `stop`: a file that the sweep makes, named after the job, if it wants no more of it."""

    work: Work
    stop: Path

    def __call__(self) -> NoReturn:
        try:
            self._run()
        except Interrupted as interrupt:  # before or after the run
            sys.exit(interrupt.exit_code)

    def _run(self) -> NoReturn:
        time = TimeIsUp()
        time.install()
        job = os.environ["SLURM_JOB_ID"]
        if (self.stop / f"{job}.stop").exists():  # its signal may have come too early for the handlers
            sys.exit(128 + signal.SIGTERM)
        self.work.output.parent.mkdir(parents=True, exist_ok=True)
        print_to(self.work.output)
        directory = RunDirectory(self.work.output.parent)
        state, before = _state(directory), saved_step(directory)
        if state == "done":
            sys.exit(0)
        code = _when_free(self.work.words if state is None else self.work.again)
        if time.warned and code in INTERRUPTED:
            tries = self._tries(job, advanced=saved_step(directory) > before)
            code = _queue_again(job) if tries <= RETRIES else _no_time(job)
        sys.stdout.flush()
        sys.exit(code)

    def _tries(self, job: str, *, advanced: bool) -> int:
        """How often in a row the job ran out of time without a new checkpoint: in an evaluation, it may once."""
        file = self.stop / f"{job}_tries"
        tries = 0
        if not advanced:
            with suppress(OSError, ValueError):
                tries = int(file.read_text(encoding="ascii"))
            tries += 1
        with suppress(OSError):
            file.write_text(str(tries), encoding="ascii")
        return tries


def _state(directory: RunDirectory) -> str | None:
    """None if the run has not begun."""
    if not os.path.lexists(directory.manifest):
        return None
    with suppress(SurefootError, OSError):
        return str(directory.read_status().get("state"))
    return "unknown"


def _when_free(words: Sequence[str]) -> int:
    """Its exit code. The run's process on a node that Slurm has given up may live a little longer and hold the run."""
    end = monotonic() + ORPHAN
    while (code := exit_code_of(words)) == BusyError.exit_code and monotonic() < end:
        sleep(ORPHAN / 60)
    return code


def _queue_again(job: str) -> int:
    """Returns the code with which the job leaves."""
    with suppress(OSError):
        # Where jobs must not be queued again, the sweep submits another one.
        subprocess.run(["scontrol", "requeue", job], check=False)
    return 128 + signal.SIGTERM


def _no_time(job: str) -> int:
    print(f"surefoot: Slurm job {job}: {NO_TIME}", file=sys.stderr)
    return 1
