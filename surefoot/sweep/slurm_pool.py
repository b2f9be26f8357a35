"""A pool of Slurm jobs, one for each run.

The jobs are Slurm's: they outlive a sweep that is killed. Each has a name that no other run's job has, by which a later
sweep finds it in the queue and waits for it instead of submitting another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from surefoot.errors import SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.sweep import slurm_queue
from surefoot.sweep.pool import Ended, Work
from surefoot.sweep.progress import saved_step
from surefoot.sweep.slurm_queue import INTERRUPTED, LOST, Job
from surefoot.sweep.slurm_submit import PLACE, Resources, label, mark_of, submit
from surefoot.text import one_line
from surefoot.training.life.signals import WARNING

LOOK = 5.0  # seconds between two questions to Slurm
SILENCE = 900.0  # seconds without an answer after which the sweep gives up; its jobs go on
RETRIES = 3  # jobs that a run may lose in a row without a new checkpoint
STOPPED = INTERRUPTED[1]  # the exit code after SIGTERM
WHY = {
    "CANCELLED": "it was cancelled",
    "DEADLINE": "it could not end before its deadline",
    "OUT_OF_MEMORY": "it used more memory than it had asked for; ask for more: --slurm mem=16G",
}
NO_TIME = "its time limit leaves no time for an update; raise it: --slurm time=HH:MM:SS"
GONE = Job("", "", "GONE", 1)  # Slurm has forgotten the job


@dataclass
class Submitted:
    """A job of ours, and the state of its run before it."""

    work: Work
    id: str
    step: int  # where the newest checkpoint is
    size: int  # bytes of output
    lost: int = 0  # jobs that were lost before it since the last new checkpoint


class SlurmPool:
    """`job`: what a job executes for a run, given the run and the folder for stop files."""

    def __init__(
        self,
        slots: int,
        folder: Path,
        job: Callable[[Work, Path], Callable[[], object]],
        resources: Resources,
        *,
        look: float = LOOK,
    ) -> None:
        self.slots = slots
        self._folder, self._place = folder, folder.absolute() / PLACE
        if "%" in str(self._place):
            raise UsageError(f"Slurm cannot write to {folder.absolute()}: % has a meaning there; choose another --out")
        self._job, self._resources, self._interval = job, resources, look
        self._waiting: list[tuple[Work, int]] = []  # refused by Slurm for now, with the number of lost jobs
        self._under_way: dict[str, Submitted] = {}  # by the name of the run
        self._stopping = False
        self._next, self._answered = monotonic() + look, monotonic()
        self._accepted: float | None = None  # when Slurm last accepted a job
        mark = mark_of(folder)
        self._found = {job.name: job for job in slurm_queue.jobs() if mark in job.name and not job.over}
        self._place.mkdir(parents=True, exist_ok=True)  # from now on, the folder has jobs of Slurm's

    def submit(self, work: Work) -> None:
        found = self._found.pop(label(self._folder, work.name), None)
        if found is not None:
            self._watch(work, found.id)
        elif not self._try(work) and self._accepted is None:
            raise UsageError(f"Slurm does not accept the job of {work.name}: {self._refusal}")

    def _try(self, work: Work, lost: int = 0) -> bool:
        """Submit a job. If Slurm refuses (too many jobs, or it is busy), it is tried again later."""
        try:
            id = submit(self._place, label(self._folder, work.name), self._job(work, self._place), self._resources)
        except SurefootError as error:
            self._refusal = str(error)
            self._waiting.append((work, lost))
            return False
        self._watch(work, id, lost)
        return True

    def _watch(self, work: Work, id: str, lost: int = 0) -> None:
        self._accepted = monotonic()
        self._under_way[work.name] = Submitted(work, id, _step(work), _size(work.output), lost)

    def poll(self, seconds: float) -> list[Ended]:
        sleep(seconds)
        if monotonic() < self._next:
            return []
        self._next = monotonic() + self._interval
        try:
            seen = slurm_queue.jobs()
        except SurefootError as error:  # a controller that restarts answers again soon
            if monotonic() - self._answered > SILENCE:
                raise SurefootError(f"{error}; the jobs go on. Run the same command again to wait for them") from None
            return []
        self._answered = monotonic()
        by_id = {job.id: job for job in seen}
        ended = [self._judge(one, by_id.get(one.id, GONE)) for one in list(self._under_way.values())]
        ended += self._try_again({job.name: job for job in seen if not job.over})
        return [one for one in ended if one is not None]

    def _judge(self, one: Submitted, job: Job) -> Ended | None:
        """The end of a run, if this is one: a job that was lost is replaced by another."""
        if not (job.over or job is GONE):
            return None
        del self._under_way[one.work.name]
        own_end = job.state in ("COMPLETED", "FAILED")
        name, code = one.work.name, job.code if own_end else _code_by_status(one.work)
        if code == 0:
            self._tidy_up(one.id)
        if code == 0 or self._stopping:
            return Ended(name, code)
        if job.state in WHY:
            return self._failed(one, WHY[job.state])
        if job.state in LOST or code in INTERRUPTED:
            lost = 0 if _step(one.work) > one.step else one.lost + 1
            if lost > RETRIES:
                return self._failed(one, f"it was lost {lost} times without a new checkpoint, last by {job.state}")
            self._try(one.work, lost)
            return None
        if -code in WARNING:  # Slurm's warning came before the job had a handler for it
            return self._failed(one, NO_TIME)
        if _size(one.work.output) == one.size:
            return self._failed(one, f"its run did not start; {self._log(one)}")
        return Ended(name, code)

    def _failed(self, one: Submitted, why: str) -> Ended:
        """Say so where the run's own last words would be."""
        with suppress(OSError):
            one.work.output.parent.mkdir(parents=True, exist_ok=True)
            with open(one.work.output, "a", encoding="utf-8") as file:
                file.write(f"surefoot: Slurm job {one.id}: {why}\n")
        return Ended(one.work.name, 1)

    def _log(self, one: Submitted) -> str:
        log = self._place / f"{one.id}_0_log.err"
        with suppress(OSError):
            said = [line for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
            last = [line for line in said if not line.startswith(("srun: ", "slurmstepd: "))] or said
            return f"{log} ends with: {one_line(last[-1], 200)}" if last else f"its log is {log}"
        return "it wrote no log: is the folder of the sweep on a file system that the nodes share?"

    def _try_again(self, queued: Mapping[str, Job]) -> list[Ended]:
        """What Slurm refused before. A job may be there nevertheless, if only the answer was lost."""
        waiting, self._waiting = self._waiting, []
        ended: list[Ended] = []
        for index, (work, lost) in enumerate(waiting):
            found = queued.get(label(self._folder, work.name))
            if found is not None:
                self._watch(work, found.id, lost)
                if self._stopping:
                    self._ask_to_stop([found.id])
            elif self._stopping:
                ended.append(Ended(work.name, STOPPED))
            elif not self._try(work, lost):
                self._waiting += waiting[index + 1 :]
                break
        if self._waiting and not self._under_way and monotonic() - (self._accepted or 0.0) > SILENCE:
            raise SurefootError(f"Slurm accepts no more jobs: {self._refusal}")
        return ended

    def stop(self, *, at_once: bool = False) -> None:
        self._stopping, self._next = True, 0.0
        ids = [*(one.id for one in self._under_way.values()), *(job.id for job in self._found.values())]
        if at_once:
            slurm_queue.cancel(ids)
        else:
            self._ask_to_stop(ids)

    def save(self) -> None:
        """Slurm warns every job itself."""

    def _ask_to_stop(self, ids: Sequence[str]) -> None:
        for id in ids:
            with suppress(OSError):  # only for a job that is just starting
                self._stop_file(id).touch()
        slurm_queue.ask_to_save(ids)

    def _tidy_up(self, id: str) -> None:
        """Remove what submitit made for a job."""
        for file in self._place.glob(f"{id}_*"):
            file.unlink(missing_ok=True)

    def _stop_file(self, id: str) -> Path:
        return self._place / f"{id}.stop"

    def close(self) -> None:
        """Every job has ended, unless Slurm was lost: then they go on, and the next sweep finds them."""
        links = [file for file in self._place.glob(".submission_file_*.sh") if not file.exists()]
        for file in (*self._place.glob("*.stop"), *links):
            file.unlink(missing_ok=True)


def _step(work: Work) -> int:
    return saved_step(RunDirectory(work.output.parent))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _code_by_status(work: Work) -> int:
    """Where the job's own code says nothing: 0 if the run is done, 1 if it failed, or else as if it was stopped."""
    with suppress(SurefootError, OSError):
        return {"done": 0, "failed": 1}.get(RunDirectory(work.output.parent).read_status().get("state", ""), STOPPED)
    return STOPPED
