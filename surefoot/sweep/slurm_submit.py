"""Submits a run of a sweep to Slurm, through submitit, under a name by which its job is found again."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from surefoot.errors import SurefootError, UsageError
from surefoot.sweep import slurm_queue
from surefoot.sweep.local import ONE_THREAD
from surefoot.text import one_line

PLACE = ".slurm"  # in the folder of the sweep: submitit's scripts, pickles and logs
LONGEST = 58  # readable characters of a job's name
OURS = {  # options of sbatch that a sweep sets itself
    **dict.fromkeys(("job-name", "array"), "a sweep finds its jobs by their names"),
    **dict.fromkeys(("output", "error", "open-mode"), "what a run prints is in its directory"),
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node"), "each run of a sweep is one process on one node"),
    "signal": "a run must be told in time to save",
    "cpus-per-task": "use --cpus-per-run",
    "gpus-per-node": "use --gpus-per-run",
    "wrap": "a job trains a run",
}


@dataclass(frozen=True)
class Resources:
    """What every job asks Slurm for."""

    cpus: int = 1
    gpus: int = 0
    one_thread: bool = True
    options: Mapping[str, str | bool] = field(default_factory=dict)  # long options of sbatch


def label(folder: Path, name: str) -> str:
    """The name of a run's job: readable, and unique to the run."""
    readable = re.sub(r"[^\w.=+-]+", "_", name, flags=re.ASCII)
    if len(readable) > LONGEST:
        readable = f"{readable[: LONGEST // 2]}..{readable[-LONGEST // 2 :]}"
    return f"{readable}{mark_of(folder)}{_digest(name.encode())}"


def mark_of(folder: Path) -> str:
    """What the names of all jobs of a sweep contain."""
    return f".{_digest(os.fsencode(folder.resolve()))}."


def _digest(text: bytes) -> str:
    return blake2b(text, digest_size=5).hexdigest()


def refuse_queued(folder: Path) -> None:
    """For a sweep that goes on elsewhere: a run that is still in Slurm's queue would be trained twice."""
    if not (folder / PLACE).is_dir() or shutil.which("squeue") is None:
        return
    try:
        found = slurm_queue.jobs()
    except SurefootError as error:
        raise SurefootError(
            f"{folder} was trained on Slurm, whose queue cannot be read: {error}; "
            f"if no job is left, remove {folder / PLACE}"
        ) from None
    mine = [job.id for job in found if not job.over and mark_of(folder) in job.name]
    if mine:
        raise UsageError(
            f"{len(mine)} of the runs in {folder} are jobs in Slurm's queue; wait for them with --on slurm, or cancel "
            f"them: scancel {' '.join(mine)}"
        )


def parse_options(words: Iterable[str]) -> dict[str, str | bool]:
    """`partition=gpu`, `exclusive`: long options of sbatch, with or without a value."""
    options: dict[str, str | bool] = {}
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        key = key.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", key) or (equals and not value) or not value.isprintable():
            raise UsageError(f"--slurm {word!r} is not an option of sbatch; write it as KEY=VALUE, such as mem=8G")
        if key in OURS:
            raise UsageError(f"--slurm {key} is not available: {OURS[key]}")
        options[key] = value if equals else True
    return options


def require_slurm() -> None:
    """Refuse a machine without Slurm or submitit, and a cluster that does not answer, before anything is done."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UsageError('--on slurm needs submitit: pip install "surefoot[slurm]"') from None
    missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise UsageError(f"--on slurm needs Slurm's {', '.join(missing)}; run it on a login node of the cluster")
    try:
        slurm_queue.jobs()
    except SurefootError as error:
        raise UsageError(
            f"no Slurm cluster answers here ({error}); run it on a login node of a cluster that is up (`sinfo` shows "
            "its nodes), or leave out --on slurm to train on this machine"
        ) from None


def submit(place: Path, name: str, job: Callable[[], object], resources: Resources) -> str:
    """Submit it; returns the id of the job."""
    import submitit

    executor = submitit.SlurmExecutor(folder=place)
    asked: dict[str, str | int | bool] = {"requeue": True, "cpus-per-task": resources.cpus, **resources.options}
    if resources.gpus:
        asked["gpus-per-node"] = resources.gpus
    executor.update_parameters(
        job_name=name,
        time=None,  # the partition's own limit, unless the options have one
        wckey=None,
        setup=[f"export {name}=1" for name in ONE_THREAD] if resources.one_thread else None,
        srun_args=[f"--cpus-per-task={resources.cpus}"],  # since 22.05 srun does not take it from sbatch
        additional_parameters=asked,
    )
    try:
        with _outside_of_jobs(), redirect_stderr(io.StringIO()):  # it prints what it also raises
            return str(executor.submit(job).job_id)
    except (OSError, RuntimeError) as error:
        raise SurefootError(one_line(str(error).removeprefix("sbatch: error: "), 300)) from None


@contextmanager
def _outside_of_jobs() -> Iterator[None]:
    """A sweep may run in a job itself, whose variables would become options of the jobs that it submits."""
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    from submitit.helpers import clean_env

    kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    with clean_env():
        os.environ.update(kept)
        yield
