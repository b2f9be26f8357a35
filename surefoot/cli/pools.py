"""Where the runs of a sweep are carried out: `--on`, the flags of each place, and the pool that they ask for.

A new place is a name in PLACES, its flags in OWN_FLAGS, and a branch in `choose_pool`.
"""

from __future__ import annotations

import sys
from argparse import Namespace, _ArgumentGroup
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from surefoot.errors import UsageError
from surefoot.limits import usable_cores
from surefoot.settings import coerce
from surefoot.sweep.pool import Pool
from surefoot.sweep.progress import Tracked
from surefoot.text import print
from surefoot.training.config.resolve import TrainConfig

LOCAL = "local"
PLACES = {LOCAL: "this machine", "ray": "a Ray cluster", "slurm": "a Slurm cluster"}


@dataclass(frozen=True)
class OwnFlag:
    """A flag that only some places have."""

    metavar: str | None  # none: a switch
    help: str
    places: tuple[str, ...]
    several: bool = False  # takes one or more words


OWN_FLAGS = {
    "--no-pin": OwnFlag(None, "let the system move runs between cores", (LOCAL,)),
    "--cpus-per-run": OwnFlag("N", "CPUs that a run reserves [its threads or workers]", ("ray", "slurm")),
    "--gpus-per-run": OwnFlag("X", "GPUs that a run reserves; with Ray, a fraction shares one [0]", ("ray", "slurm")),
    "--address": OwnFlag("ADDRESS", "Ray cluster: auto, HOST:PORT or ray://HOST:PORT [as Ray decides]", ("ray",)),
    "--shared": OwnFlag(None, "all nodes see the folder of the runs: they write into it directly", ("ray",)),
    "--slurm": OwnFlag(
        "KEY=VALUE",
        "options of sbatch for the job of each run, such as partition=gpu time=4:00:00 mem=8G",
        ("slurm",),
        several=True,
    ),
}


@dataclass(frozen=True)
class Needs:
    """What the runs of a sweep need from its pool."""

    runs: int  # how many are to be carried out
    cores: int | None  # the most that one of them uses; none: a run decides that itself
    one_thread: bool  # no run has more than one

    @classmethod
    def of(cls, runs: Sequence[Tracked]) -> Needs:
        each = [cores_of(run.run.point.config) for run in runs]
        threads = [run.run.point.config.run.threads for run in runs]
        most = None if None in each else max(number or 0 for number in each)
        return cls(sum(run.stage == "waiting" for run in runs), most, "auto" not in threads)


@dataclass(frozen=True)
class PoolChoice:
    """The pool that a command asks for; `make` starts it, for the runs in a folder."""

    jobs: int | None  # runs at a time; none: as many as there is room for
    place: str  # its name in the greeting; empty: this machine
    words: tuple[str, ...]  # the flags that choose it again
    make: Callable[[Needs, Path], Pool]


def add_places(group: _ArgumentGroup) -> None:
    places = ", ".join(f"{name} ({what})" for name, what in PLACES.items())
    group.add_argument(
        "--on", choices=list(PLACES), default=LOCAL, help=f"where the runs are trained: {places} [local]"
    )
    for flag, own in OWN_FLAGS.items():
        help = own.help if own.places == (LOCAL,) else f"{own.help} (--on {', '.join(own.places)})"
        if own.metavar is None:
            group.add_argument(flag, action="store_true", help=help)
        elif own.several:
            group.add_argument(flag, metavar=own.metavar, nargs="+", action="extend", help=help)
        else:
            group.add_argument(flag, metavar=own.metavar, help=help)


def choose_pool(arguments: Namespace) -> PoolChoice:
    """Checks everything that can be checked before the sweep touches its folder."""
    place: str = arguments.on
    for flag, own in OWN_FLAGS.items():
        if _value(arguments, flag) and place not in own.places:
            where = " or ".join(own.places)
            raise UsageError(f"{flag} has no effect on {PLACES[place]}; use it with --on {where}, or leave it out")
    jobs = None if arguments.jobs is None else _at_least_one("jobs", coerce("jobs", arguments.jobs, int))
    if place == "ray":
        return _on_ray(jobs, arguments)
    if place == "slurm":
        return _on_slurm(jobs, arguments)
    here = jobs or usable_cores()
    return PoolChoice(here, "", (), lambda needs, folder: _local(min(here, needs.runs), needs, arguments))


def refuse_running_elsewhere(arguments: Namespace, folder: Path) -> None:
    """Slurm's jobs outlive their sweep, so the next one must not start their runs elsewhere."""
    if arguments.on != "slurm":
        from surefoot.sweep.slurm_submit import refuse_queued

        refuse_queued(folder)


def _local(slots: int, needs: Needs, arguments: Namespace) -> Pool:
    from surefoot.sweep.local import LocalPool

    cores = 0 if arguments.no_pin else needs.cores or 0
    with _shown("loading PyTorch ...", arguments):
        return LocalPool(slots, cores_each=cores, one_thread=needs.one_thread)


@contextmanager
def _shown(note: str, arguments: Namespace) -> Iterator[None]:
    """Show it on a terminal until this is done."""
    shown = sys.stderr.isatty() and not arguments.quiet
    if shown:
        print(note, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(" " * len(note), end="\r", file=sys.stderr, flush=True)


def _on_ray(jobs: int | None, arguments: Namespace) -> PoolChoice:
    from surefoot.sweep.ray_cluster import RayCluster, check_address, require_ray
    from surefoot.sweep.ray_pool import RayPool

    if not arguments.dry_run:
        require_ray()
        check_address(arguments.address)
    given = arguments.cpus_per_run
    cpus = None if given is None else _at_least_one("cpus_per_run", coerce("cpus_per_run", given, int))
    gpus = coerce("gpus_per_run", arguments.gpus_per_run or "0", float)
    if not (0 <= gpus <= 1 or (isfinite(gpus) and gpus > 1 and gpus.is_integer())):
        raise UsageError(f"gpus_per_run={gpus:g} must be a whole number, or a fraction of one GPU")

    def make(needs: Needs, folder: Path) -> Pool:
        with _shown("connecting to Ray ...", arguments):
            cluster = RayCluster(arguments.address)
        return RayPool(
            cluster,
            folder,
            jobs=jobs,
            cpus=cpus or needs.cores or 1,
            gpus=gpus,
            one_thread=needs.one_thread,
            shared=arguments.shared,
        )

    return PoolChoice(jobs, PLACES["ray"], _typed(arguments), make)


def _on_slurm(jobs: int | None, arguments: Namespace) -> PoolChoice:
    from surefoot.cli.slurm_job import SlurmRun
    from surefoot.sweep.slurm_pool import SlurmPool
    from surefoot.sweep.slurm_submit import Resources, parse_options, require_slurm

    options = parse_options(arguments.slurm or ())
    cpus = None if arguments.cpus_per_run is None else coerce("cpus_per_run", arguments.cpus_per_run, int)
    gpus = coerce("gpus_per_run", arguments.gpus_per_run or 0, int)
    if gpus < 0:
        raise UsageError(f"gpus_per_run={gpus} is too small; it must be at least 0")
    if cpus is not None:
        _at_least_one("cpus_per_run", cpus)
    if not arguments.dry_run:
        require_slurm()

    def make(needs: Needs, folder: Path) -> Pool:
        resources = Resources(cpus or needs.cores or 1, gpus, needs.one_thread, options)
        return SlurmPool(jobs or needs.runs, folder, SlurmRun, resources)

    return PoolChoice(jobs, PLACES["slurm"], _typed(arguments), make)


def _typed(arguments: Namespace) -> tuple[str, ...]:
    """`--on` and the flags of its place, as they were typed."""
    words = [f"--on={arguments.on}"]
    for flag, own in OWN_FLAGS.items():
        value = _value(arguments, flag)
        values = value if isinstance(value, list) else [value] if value else []
        words += [flag if own.metavar is None else f"{flag}={one}" for one in values]
    return tuple(words)


def _value(arguments: Namespace, flag: str) -> object:
    return vars(arguments)[flag.removeprefix("--").replace("-", "_")]


def _at_least_one(name: str, number: int) -> int:
    if number < 1:
        raise UsageError(f"{name}={number} is too small; it must be at least 1")
    return number


def cores_of(config: TrainConfig) -> int | None:
    """The cores for a run: one per thread or worker. None: the run decides that itself, so it is not pinned."""
    threads, workers = config.run.threads, config.env.workers
    return None if "auto" in (threads, workers) else max(int(threads), int(workers))
