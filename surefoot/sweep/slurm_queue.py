"""Slurm's own commands: which jobs of ours there are, and signals to them. submitit only submits."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from surefoot.errors import SurefootError
from surefoot.text import one_line
from surefoot.training.life.signals import STOPPING

# Every other state leads to one of these, or the job is queued again.
OVER = {"CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY"}
LOST = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED", "TIMEOUT"}  # over, but not because of what the job did
WIDTHS = {"JobID": 20, "State": 20, "exit_code": 20, "Name": 100}  # columns of squeue
INTERRUPTED = tuple(128 + number for number in STOPPING)  # exit codes of a run that was asked to stop
PATIENCE = 60.0  # seconds for an answer of the controller
AT_ONCE = 500  # jobs named in one command line


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it."""

    id: str
    name: str
    state: str
    code: int  # its exit code, or minus the number of the signal that killed it

    @property
    def over(self) -> bool:
        return self.state in OVER | LOST


def jobs() -> list[Job]:
    """This user's jobs: waiting, running, and those that ended in the last minutes."""
    columns = ",".join(f"{name}:{width}" for name, width in WIDTHS.items())
    command = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--Format={columns}"]
    return [_job(line) for line in _output(command).splitlines() if line.strip()]


def ask_to_save(ids: Iterable[str]) -> None:
    """Jobs that wait are cancelled; those that run get SIGTERM."""
    for some in _chunks(ids):
        for how in (["--state=PENDING"], ["--state=SUSPENDED"], ["--state=RUNNING", "--signal=TERM"]):
            _output(["scancel", "--quiet", *how, *some], check=False)


def cancel(ids: Iterable[str]) -> None:
    for some in _chunks(ids):
        _output(["scancel", "--quiet", *some], check=False)


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    every = list(ids)
    for first in range(0, len(every), AT_ONCE):
        yield every[first : first + AT_ONCE]


def _job(line: str) -> Job:
    cells, start = {}, 0
    for name, width in WIDTHS.items():
        cells[name] = line[start : start + width].strip()
        start += width
    return Job(cells["JobID"], cells["Name"], cells["State"], _exit_code(cells["exit_code"]))


def _exit_code(status: str) -> int:
    """Slurm keeps a job's status as wait(2) gives it; srun reports the signal that killed its task as 128 + N."""
    code = os.waitstatus_to_exitcode(int(status)) if status.isdigit() else 1
    return code if code <= 128 or code in INTERRUPTED else 128 - code


def _output(command: list[str], *, check: bool = True) -> str:
    try:
        # In a session of its own: a Ctrl-C at the terminal is for the sweep alone.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, start_new_session=True
        )
    except OSError as error:
        raise SurefootError(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SurefootError(f"{command[0]} has not answered for {PATIENCE:.0f} s") from None
    if check and done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]  # the reason comes last
        raise SurefootError(f"{command[0]} failed: {one_line(said[0].removeprefix(f'{command[0]}: '), 200)}")
    return done.stdout
