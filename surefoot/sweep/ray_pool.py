"""A pool on a Ray cluster: runs are carried out on its nodes and copied back while they go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Protocol
from uuid import uuid4

from surefoot.errors import BusyError, SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.sweep.live_copy import Marks, find_changes, write_changes
from surefoot.sweep.pool import Ended, Work
from surefoot.sweep.ray_cluster import Lost, Unreachable
from surefoot.sweep.ray_runner import Order, Report

LOOK = 2.0  # seconds between two looks at a run
LOOKS = 25.0  # a second over all runs, at most
PATIENCE = 60.0  # seconds for a node that does not answer, a disk that is full, or a directory that is still in use
GRACE = 5.0  # seconds for a process to be killed by its node
IDLE = 10.0  # seconds after which a runner without work gives its CPUs back
COUNTING = 2.0  # seconds between two looks at the nodes


class Cluster(Protocol):
    """What the pool needs from `RayCluster`."""

    def room(self, cpus: float, gpus: float) -> int: ...

    def start_runner(self, cpus: float, gpus: float) -> object: ...

    def call(self, runner: object, method: str, *arguments: object) -> object: ...

    def ready(self, answers: Sequence[object], seconds: float) -> list[object]: ...

    def result(self, answer: object) -> object: ...

    def kill(self, runner: object) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class Job:
    """A run under way."""

    work: Work
    directory: RunDirectory
    runner: object
    order: Order
    marks: Marks = field(default_factory=dict)  # those of the copy here
    answer: object | None = None  # that is awaited
    started: bool = False
    due: float = 0.0  # when to ask again
    trouble: float | None = None  # since when its node or the disk has not answered
    killed: float | None = None  # when to stop waiting for its end


class RayPool:
    """Runners on the nodes of a cluster, each of which carries out one run after another.

    The directory of a run is written by this process only, from what its runner reports. This process also holds its
    lock. So a node that was given up while it still works cannot disturb the run's next attempt. With `shared`, runs
    write to their directories themselves, as on one machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        jobs: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
        one_thread: bool = True,
        shared: bool = False,
    ) -> None:
        self._cluster, self._jobs, self._size, self._one_thread = cluster, jobs, (cpus, gpus), one_thread
        self._shared, self._probe = shared, folder.absolute() / f".ray-{uuid4().hex}"
        self._busy: dict[str, Job] = {}
        self._idle: list[tuple[object, float]] = []  # runners, and since when they are idle
        self._ended: list[Ended] = []
        self._begun: set[str] = set()  # runs that this sweep has started from nothing
        self._lost: set[str] = set()  # runs whose last process may still be there
        self._room, self._counted = cluster.room(cpus, gpus), monotonic()
        if not self._room and jobs is None:
            size = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
            cluster.close()
            raise UsageError(
                f"no node of the Ray cluster has {size}, which a run reserves; change --cpus-per-run or "
                "--gpus-per-run, or give --jobs N to wait for nodes that are added"
            )
        if shared:
            self._probe.touch()

    @property
    def slots(self) -> int:
        """`jobs`, or as many as fit on the nodes that are there now."""
        if self._jobs is not None:
            return self._jobs
        if monotonic() - self._counted > COUNTING:
            self._room, self._counted = self._cluster.room(*self._size), monotonic()
        return max(1, self._room)

    def submit(self, work: Work) -> None:
        directory = RunDirectory(work.output.parent)
        directory.path.mkdir(parents=True, exist_ok=True)
        content = None
        if not self._shared:
            try:
                directory.lock()
            except BusyError as error:
                with open(work.output, "a", encoding="utf-8") as output:
                    output.write(f"surefoot: {error}\n")
                self._ended.append(Ended(work.name, error.exit_code))
                return
            content = find_changes(directory, {})
        runner = self._idle.pop()[0] if self._idle else self._cluster.start_runner(*self._size)
        order = Order(
            name=work.name,
            words=self._trusting(work),
            directory=str(directory.path),
            content=content,
            probe=str(self._probe),
            working_directory=os.getcwd(),
            one_thread=self._one_thread,
            gpus=self._size[1] > 0,
        )
        job = Job(work, directory, runner, order, marks={} if content is None else content.marks)
        if self._shared and work.name in self._lost:
            job.trouble = monotonic()
        self._busy[work.name] = job

    def _trusting(self, work: Work) -> tuple[str, ...]:
        """A node cannot know that a run which began on another one, under that one's key, is this user's."""
        if work.words[0] != "resume":
            self._begun.add(work.name)
        elif work.name in self._begun and "--trust" not in work.words:
            return (*work.words, "--trust")
        return work.words

    def poll(self, seconds: float) -> list[Ended]:
        for job in list(self._busy.values()):
            self._ask(job)
        self._release_idle()
        awaited = {job.answer: job for job in self._busy.values() if job.answer is not None}
        if awaited:
            for answer in self._cluster.ready(list(awaited), 0.0 if self._ended else seconds):
                self._take(awaited[answer])
        elif not self._ended:
            sleep(seconds)
        ended, self._ended = self._ended, []
        return ended

    def stop(self, *, at_once: bool = False) -> None:
        for job in list(self._busy.values()):
            if not job.started:
                self._cluster.kill(job.runner)
                self._end(job, -signal.SIGTERM, keep=False)
                continue
            self._cluster.call(job.runner, "stop", at_once)
            if at_once:
                job.killed = job.killed or monotonic() + GRACE

    def save(self) -> None:
        """The runs are on other machines, which get their own warnings."""

    def close(self) -> None:
        """Waits until every run has saved itself and been copied."""
        deadline = monotonic() + PATIENCE
        try:
            with suppress(SurefootError):
                self.stop()
                while self._busy and monotonic() < deadline:
                    self.poll(0.25)
            leaving = [self._cluster.call(runner, "leave") for runner, _ in self._idle]
            while leaving and monotonic() < deadline:
                gone = self._cluster.ready(leaving, 1.0)
                leaving = [answer for answer in leaving if answer not in gone]
            for job in self._busy.values():
                job.directory.unlock()
        finally:
            self._probe.unlink(missing_ok=True)
            self._cluster.close()

    def _ask(self, job: Job) -> None:
        """Call its runner, if it is time to."""
        now = monotonic()
        if job.killed is not None and now > job.killed:
            self._cluster.kill(job.runner)
            self._end(job, -signal.SIGKILL, keep=False)
        elif job.answer is not None or now < job.due:
            return
        elif job.started:
            wait = max(LOOK, len(self._busy) / LOOKS)
            job.answer = self._cluster.call(job.runner, "look", job.marks, wait)
        elif job.trouble is None or now > job.trouble + PATIENCE or not job.directory.is_locked():
            job.trouble = None
            job.answer = self._cluster.call(job.runner, "start", job.order)
        else:  # the process of a lost node still holds the shared directory: it is saving
            job.due = now + 1.0

    def _take(self, job: Job) -> None:
        """The answer of its runner."""
        answer, job.answer = job.answer, None
        try:
            found = self._cluster.result(answer)
        except Unreachable as error:
            if not job.started or self._in_trouble(job):
                self._lose(job, str(error))
            return
        except Lost as error:
            self._lose(job, str(error))
            return
        except SurefootError as error:
            if not job.started:  # nothing can run there: another version, or a folder that is not shared
                raise
            self._lose(job, str(error))
            return
        job.started = True
        if isinstance(found, Report):
            self._follow(job, found)

    def _follow(self, job: Job, report: Report) -> None:
        if report.changes is not None:
            try:
                write_changes(job.directory, report.changes)
            except OSError as error:
                if self._in_trouble(job):
                    why = f"cannot write {job.directory.path}: {error.strerror}"
                    raise SurefootError(f"{why}; the run is on its node until the sweep ends") from None
                return
            job.marks = report.changes.marks
        job.trouble = None
        if report.code is not None:
            self._end(job, report.code)

    def _in_trouble(self, job: Job) -> bool:
        """Whether it has lasted too long; if not, ask again in a second."""
        now = monotonic()
        job.trouble, job.due = now if job.trouble is None else job.trouble, now + 1.0
        return now > job.trouble + PATIENCE

    def _lose(self, job: Job, why: str) -> None:
        with suppress(Exception):  # it may be gone
            self._cluster.kill(job.runner)
        self._lost.add(job.work.name)
        self._end(job, -signal.SIGKILL, lost=why or "its node is gone", keep=False)

    def _end(self, job: Job, code: int, *, lost: str = "", keep: bool = True) -> None:
        job.directory.unlock()
        del self._busy[job.work.name]
        if keep:
            self._idle.append((job.runner, monotonic()))
        self._ended.append(Ended(job.work.name, code, lost))

    def _release_idle(self) -> None:
        """A runner whose handle is dropped ends after its last call."""
        for runner, since in list(self._idle):
            if monotonic() - since > IDLE:
                self._idle.remove((runner, since))
                self._cluster.call(runner, "leave")
