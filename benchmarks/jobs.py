"""Carries out many runs, some at a time, for studies that take days: stop it in any way, and it goes on later.

Every run is a process with a folder of its own. When the study is told to stop (Ctrl-C, SIGTERM, the end of its
minutes), each run is asked to save itself, and the next call continues it. If the study itself is killed, Linux asks
its runs to save and end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any, TypeAlias

from surefoot.runs import Run, RunDirectory
from surefoot.sweep.plan import as_flags

ROOT = Path(__file__).resolve().parent.parent
Outcome: TypeAlias = dict[str, Any]  # at least "score" and "seconds", or "error"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GLANCE = 0.2  # seconds between two looks
GRACE = 120.0  # seconds in which a run must have saved itself
DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Job:
    """A run. `again`: the words that continue what `begun` finds in its folder."""

    name: str
    folder: Path
    start: tuple[str, ...]
    again: tuple[str, ...]
    begun: Callable[[Path], bool]
    outcome: Callable[[Path], Outcome | None]  # None: it is not complete

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in as_flags(name, value)]


def digest(*parts: object) -> str:
    """The same for the same settings: with others, a run begins anew in another folder."""
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]


def our_words(env: str, algo: str, settings: Mapping[str, Any], preset: str = "none") -> list[str]:
    """What to type after `surefoot`, without seed and folder. `preset` auto: the shipped one, if there is one."""
    chosen = [] if preset == "auto" else [f"--preset={preset}"]
    return ["train", env, f"--algo={algo}", *chosen, *flags_of(settings)]


def our_run(name: str, folder: Path, words: Sequence[str], seed: int, episodes: int) -> Job:
    """A run of ours with one thread, which is exact when it is continued."""
    python, fixed = (sys.executable, "-m", "surefoot"), (f"--eval-episodes={episodes}", "--threads=1")
    start = (*python, *words, f"--seed={seed}", *fixed, f"--run-dir={folder}")
    return Job(name, folder, start, (*python, "resume", str(folder)), _begun, _outcome)


def _begun(folder: Path) -> bool:
    return RunDirectory(folder).manifest.exists()


def _outcome(folder: Path) -> Outcome | None:
    directory = RunDirectory(folder)
    if not _begun(folder) or directory.read_status().get("state") != "done":
        return None
    run = Run(directory)
    returns = [row["episode_return"] for row in run.metrics if row.get("episode_return") is not None]
    found = run.result
    return {
        "score": round(float(found["eval"]["mean_return"]), 3),
        "training": round(sum(returns) / len(returns), 3) if returns else None,
        "seconds": round(float(found["seconds"]), 1),
        "steps": int(found["total_steps"]),
    }


class Stop:
    """The signals that have arrived, and the time."""

    def __init__(self, minutes: float | None) -> None:
        self.received = 0  # the first signal
        self.count = 0
        self._end = None if minutes is None else monotonic() + 60.0 * minutes

    @property
    def now(self) -> bool:
        return bool(self.received) or (self._end is not None and monotonic() >= self._end)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        self.count += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._note) for number in STOPPING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def carry_out(
    missing: Callable[[], Sequence[Job]],
    ended: Callable[[Job, Outcome], None],
    slots: int,
    minutes: float | None = None,
) -> int:
    """Run all that is `missing`, which is asked again after every run. Returns the signal that stopped it, or 0.

    `minutes`: stop after so many. A second signal kills the runs at once; they go on from their last checkpoints.
    """
    stop, running = Stop(minutes), dict[str, tuple[Job, subprocess.Popen[bytes]]]()
    with stop.watching():
        try:
            waiting = list(missing())
            while (running or waiting) and not stop.now:
                noted = False
                for job in waiting[: slots - len(running)]:
                    waiting.remove(job)
                    found = job.outcome(job.folder)  # complete, but the study was killed before it noted so
                    if found is None:
                        running[job.name] = job, start(job)
                    else:
                        ended(job, found)
                        noted = True
                for job, process in list(running.values()):
                    if process.poll() is not None:
                        del running[job.name]
                        ended(job, job.outcome(job.folder) or {"error": last_line(job.log, process.returncode)})
                        noted = True
                if noted:
                    waiting = [job for job in missing() if job.name not in running]
                else:
                    sleep(GLANCE)
        finally:
            finish(running, stop, ended)
    return stop.received


def start(job: Job) -> subprocess.Popen[bytes]:
    """A process that Ctrl-C does not reach, and that Linux stops if this one is killed."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def before() -> None:
        if libc is not None:
            libc.prctl(DEATH_OF_PARENT, signal.SIGTERM)

    with job.log.open("ab") as log:
        return subprocess.Popen(
            job.again if job.begun(job.folder) else job.start,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=before,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
        )


def finish(
    running: Mapping[str, tuple[Job, subprocess.Popen[bytes]]], stop: Stop, ended: Callable[[Job, Outcome], None]
) -> None:
    """Ask what is still running to save and end, and note what was about to be complete."""
    for _, process in running.values():
        if process.poll() is None:
            process.terminate()
    until, before = monotonic() + GRACE, stop.count
    while any(process.poll() is None for _, process in running.values()):
        if monotonic() > until or stop.count > before:
            for _, process in running.values():
                process.kill()
        sleep(GLANCE)
    for job, _ in running.values():
        found = job.outcome(job.folder)
        if found is not None:
            ended(job, found)


def last_line(log: Path, code: int) -> str:
    """Why a run failed."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else f"ended with exit code {code}"


def forget(job: Job) -> None:
    """Remove what a failed run has left, so that it can be tried again from the start."""
    shutil.rmtree(job.folder, ignore_errors=True)


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two studies in the same folder would start the same runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another study is at work in {folder}; wait for it, or choose another --work") from None
        yield


def write_json(data: object, out: Path) -> None:
    """In one step: whoever is killed meanwhile loses nothing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    half = out.with_suffix(".partial")
    half.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    half.replace(out)
