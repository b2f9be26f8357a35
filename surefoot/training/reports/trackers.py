"""Sends a run to Weights & Biases or MLflow from a separate process that reads the run's files.

The mirror follows `metrics.jsonl`. Whatever such a client does (hang, crash, print, replace Python's hooks, wait for a
server at exit), it cannot affect the run, which only sees whether the child process works.

    python -m surefoot.training.reports.trackers wandb RUN     started by a run; learns from stdin how the run ended
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from surefoot.errors import CheckpointError, GoneError, UsageError, did_you_mean
from surefoot.runs.directory import ROOT, RunDirectory
from surefoot.runs.files import read_json, read_json_lines, write_json
from surefoot.schema import Either, Flag, MapOf, Misfit, Number, Optional, Record, Shape, Text, Whole
from surefoot.training.callbacks import Callback
from surefoot.training.life.signals import known_signals

if TYPE_CHECKING:
    from surefoot.engine.contract import Several
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow

PROJECT = "surefoot"
END_SECONDS = 10.0  # how long the end of a run waits for a mirror
UPLOAD_SECONDS = 8.0  # part of these, for wandb's last upload; what remains is left for `wandb sync`
POLL_SECONDS = 1.0
QUIET = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}  # unless the user says otherwise
BATCH, LONGEST_PARAM = 1000, 6000  # MLflow's limits: metrics per request, characters per setting


NUMBER = Number(finite=False)
FOLLOWED = Record(id=Text(), step=Whole())
TIMING = Record(step=Whole(), steps_per_second=NUMBER)
STEP = Record(step=Whole())
METRICS = MapOf(Optional(NUMBER))
RESULT = Record(eval=Optional(MapOf(Either((NUMBER, Flag())))))
ENDED: queue.Queue[str] = queue.Queue()  # how the run ended


class Mirror(Protocol):
    """One run at a tracker; `id` identifies it."""

    id: str

    def log(self, row: dict[str, float], step: int) -> None: ...

    def finish(self, outcome: str, summary: dict[str, float], step: int) -> None:
        """outcome: done, interrupted or failed."""
        ...


class WandbMirror:
    def __init__(self, name: str, run: RunDirectory, settings: dict[str, object], known: str | None) -> None:
        wandb = import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            dir=str(run.path),
            config=settings,
            id=known,
            resume="allow",
            settings=wandb.Settings(
                silent=True, console="off", finish_timeout=UPLOAD_SECONDS, finish_timeout_raises=True
            ),
        )
        self.id = str(self._run.id)

    def log(self, row: dict[str, float], step: int) -> None:
        self._run.log(row, step=step)

    def finish(self, outcome: str, summary: dict[str, float], step: int) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code={"done": 0, "failed": 1}.get(outcome, 255))


class MlflowMirror:
    def __init__(self, name: str, run: RunDirectory, settings: dict[str, object], known: str | None) -> None:
        self._entities, client = import_module("mlflow.entities"), import_module("mlflow").MlflowClient()
        self._client = client
        if known is not None:
            self.id = known
            client.update_run(known, status="RUNNING")
            return
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        if client.get_experiment_by_name(project) is None:
            with suppress(Exception):  # another run may have done it first
                client.create_experiment(project)
        experiment = client.get_experiment_by_name(project).experiment_id
        self.id = str(client.create_run(experiment, run_name=name).info.run_id)
        params = (self._entities.Param(key, str(value)[:LONGEST_PARAM]) for key, value in settings.items())
        client.log_batch(self.id, params=list(params))

    def log(self, row: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = iter([self._entities.Metric(key, float(value), now, step) for key, value in row.items()])
        while batch := list(islice(metrics, BATCH)):
            self._client.log_batch(self.id, metrics=batch)

    def finish(self, outcome: str, summary: dict[str, float], step: int) -> None:
        self.log(summary, step)
        self._client.set_terminated(self.id, {"done": "FINISHED", "failed": "FAILED"}.get(outcome, "KILLED"))


MIRRORS: dict[str, type[WandbMirror | MlflowMirror]] = {"wandb": WandbMirror, "mlflow": MlflowMirror}


def require_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed, before training starts."""
    if name not in MIRRORS:
        raise UsageError(f"unknown tracker '{name}'{did_you_mean(name, MIRRORS)} (there are {', '.join(MIRRORS)})")
    spec = find_spec(name)
    if spec is None or spec.origin is None:  # no origin: a folder of this name, such as wandb's own output
        raise UsageError(f'{name} is not installed; pip install "surefoot[{name}]"')


class TrackerLog(Callback):
    """Starts the mirror, warns once if it fails, and waits a little for it at the end."""

    reads_tensors = False

    def __init__(self, name: str, run: RunDirectory) -> None:
        self.name, self.run = name, run
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.run.path / f"tracker-{self.name}.log"

    def on_start(self, trainer: Trainer) -> None:
        command = [sys.executable, "-m", "surefoot.training.reports.trackers", self.name, str(self.run.path.absolute())]
        try:
            with open(self.log, "wb") as out:
                # In its own session it does not get our Ctrl-C, and can be ended together with its children.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
                )
        except OSError as error:
            trainer.warn(f"{self.name} did not start: {error}; {self.run.metrics} has every row")

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self._look(trainer)

    def on_updates(self, trainer: Trainer, several: Several) -> None:
        self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._lost(trainer, self._last_line())

    def on_exit(self, trainer: Trainer, outcome: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(f"{outcome}\n".encode())
            self._process.stdin.close()
        try:
            if self._process.wait(END_SECONDS):
                self._lost(trainer, self._last_line())
        except subprocess.TimeoutExpired:
            self._lost(trainer, f"not done after {END_SECONDS:g} s")
        except KeyboardInterrupt:  # the user does not want to wait
            self._lost(trainer, "not waited for")
        self._process = None

    def _lost(self, trainer: Trainer, why: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._process.stdin.close()
        self._process = None
        trainer.warn(f"{self.name} is off: {why} ({self.log}); {self.run.metrics} has every row")

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else "it ended without a message"
        return "it left no log"


def run_name(run: RunDirectory) -> str:
    """The `--name`, or else its path below `runs/`, or the name of a directory elsewhere."""
    with suppress(CheckpointError):
        given = read_json(run.manifest).get("name")
        if isinstance(given, str):
            return given
    path, root = run.path.resolve(), ROOT.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


class Followed:
    """What the mirror has sent so far, stored in `tracker-NAME.json` for resumed runs."""

    def __init__(self, name: str, run: RunDirectory) -> None:
        self._name, self._run = name, run
        self.id: str | None = None
        self.step = 0
        with suppress(CheckpointError, Misfit):  # damaged or missing: start a new tracker run
            known = read_json(self._file)
            FOLLOWED.check(known)
            self.id, self.step = known["id"], known["step"]

    @property
    def _file(self) -> Path:
        return self._run.path / f"tracker-{self._name}.json"

    def remember(self, run_id: str, step: int) -> None:
        self.id, self.step = run_id, step
        with suppress(OSError):  # full disk: a resumed run will start a new tracker run
            write_json(self._file, {"id": run_id, "step": step})


def rows_after(run: RunDirectory, step: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Rows of metrics with their speed. A resume reproduces the same rows, so none is sent twice."""
    speed = {row["step"]: row["steps_per_second"] for row in _rows(run.timings, TIMING)}
    for row in _rows(run.metrics, METRICS):
        at = int(row["step"] or 0)
        if at > step:
            row["steps_per_second"] = speed.get(at)
            yield at, {key: x for key, x in row.items() if key != "step" and x is not None}


def _rows(file: Path, shape: Shape) -> Iterator[MetricsRow]:
    for row in read_json_lines(file):
        try:
            STEP.check(row)
            shape.check(row)
        except Misfit as misfit:
            raise CheckpointError(f"{file} is damaged: {misfit}") from None
        yield row


def follow(name: str, run: RunDirectory) -> None:
    """Mirror the run until its process reports how it ended, or is gone."""
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    for number in known_signals("SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2"):
        signal.signal(number, lambda *_: None)  # signals go to every process of a job; wait for the run's report
    threading.Thread(target=_leave_with_the_run, daemon=True).start()
    run.watch()
    settings = tomllib.loads(run.config.read_text(encoding="utf-8"))
    followed = Followed(name, run)
    mirror: Mirror = MIRRORS[name](run_name(run), run, settings, followed.id)
    followed.remember(mirror.id, followed.step)
    outcome = ""
    while not outcome:
        with suppress(queue.Empty):
            outcome = ENDED.get(timeout=POLL_SECONDS)
        with suppress(GoneError):  # nothing more to send; the run reports the deleted directory
            run.follow()
        step = followed.step
        for step, row in rows_after(run, followed.step):
            mirror.log(row, step)
        if step > followed.step:
            followed.remember(mirror.id, step)
    mirror.finish(outcome, final_evaluation(run) if outcome == "done" else {}, followed.step)


def _leave_with_the_run() -> None:
    """Report how the run ended, and kill this process a little later even if it hangs: no one else will."""
    said = b""  # not sys.stdin: exiting while a thread waits in it may abort the interpreter
    while not said.endswith(b"\n") and (more := os.read(0, 100)):
        said += more
    ENDED.put(said.decode().strip() or "interrupted")
    time.sleep(2.0 * END_SECONDS)
    os._exit(1)


def final_evaluation(run: RunDirectory) -> dict[str, float]:
    """The final evaluation as `final_mean_return`, `final_iqm_return`, …"""
    found = read_json(run.result)
    try:
        RESULT.check(found)
    except Misfit as misfit:
        raise CheckpointError(f"{run.result} is damaged: {misfit}") from None
    return {f"final_{key}": float(x) for key, x in (found["eval"] or {}).items()}


if __name__ == "__main__":
    follow(sys.argv[1], RunDirectory(Path(sys.argv[2])))
