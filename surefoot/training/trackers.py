"""Weights & Biases and MLflow beside the run's own files. Whatever happens to them, the run goes on."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from surefoot.errors import UsageError, did_you_mean
from surefoot.runs.directory import ROOT
from surefoot.runs.files import read_json, write_json
from surefoot.training.callbacks import Callback
from surefoot.training.loggers import json_number

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory
    from surefoot.training.evaluate import Evaluation
    from surefoot.training.trainer import Trainer

PROJECT = "surefoot"
QUEUE_ROWS = 4096  # that may wait for a slow tracker; further ones are dropped
END_SECONDS = 10.0  # that the end of a run waits for a tracker,
KILLED_SECONDS = 3.0  # and that of an interrupted one, whose user or scheduler is waiting
UPLOAD_SECONDS = 8.0  # for wandb's last upload; it leaves the rest to `wandb sync`
BATCH, LONGEST_PARAM = 1000, 6000  # metrics of a request, characters of a setting: MLflow takes no more
Outcome = Literal["finished", "failed", "killed"]


class Row(NamedTuple):
    step: int
    seconds: float  # since the epoch
    values: dict[str, Any]
    final: bool = False  # about the run, not about this step


class WandbRun:
    """Rows are its history, the final evaluation its summary. It drops steps that are not beyond its last one."""

    # The timeout is for the first connection; at its exit the process would wait for it, by default for 90 seconds.
    environment: ClassVar = {"WANDB_ERROR_REPORTING": "false", "WANDB_INIT_TIMEOUT": "20"}
    hint = "WANDB_MODE=offline needs neither account nor network"

    def __init__(self, name: str, directory: Path, config: dict[str, Any], run_id: str | None) -> None:
        wandb = import_module("wandb")
        hooks = {hook: getattr(sys, hook) for hook in ("exit", "excepthook")}
        silent = wandb.Settings(silent=True)
        wandb.setup(silent)  # before anything else: a missing key is now an error, not a question on the terminal
        wandb.termsetup(silent, None)  # also where the user's own script was there first
        for hook, function in hooks.items():  # it has put its own there
            setattr(sys, hook, function)
        settings = wandb.Settings(
            silent=True,
            console="off",
            reinit="create_new",  # a run of the user's own script stays theirs
            stop_fn=lambda: None,  # the stop button of the web page would interrupt the process
            finish_timeout=UPLOAD_SECONDS,
            finish_timeout_raises=True,
        )
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        where = {"project": project, "name": name, "dir": str(directory), "id": run_id, "resume": "allow"}
        self._run = wandb.init(config=config, settings=settings, **where)
        self.id = str(self._run.id)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.final:
                self._run.summary.update(row.values)
            else:
                self._run.log(row.values, step=row.step, commit=True)

    def finish(self, outcome: Outcome) -> None:
        self._run.finish(exit_code={"finished": 0, "failed": 1, "killed": 255}[outcome])


class MlflowRun:
    """Rows and the final evaluation are its metrics, settings its params."""

    environment: ClassVar = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
    }
    hint = "MLFLOW_TRACKING_URI=sqlite:///mlflow.db needs no server"

    def __init__(self, name: str, directory: Path, config: dict[str, Any], run_id: str | None) -> None:
        mlflow = import_module("mlflow")
        self._entities = import_module("mlflow.entities")
        self._client = mlflow.MlflowClient()  # the module's own functions share one run with the user's script
        if run_id is not None:
            self.id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self.id = str(self._client.create_run(experiment, run_name=name).info.run_id)
        params = [self._entities.Param(key, str(value)[:LONGEST_PARAM]) for key, value in config.items()]
        self._client.log_batch(self.id, params=params)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            with suppress(Exception):  # another process may have been faster
                return str(self._client.create_experiment(name))
            found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def log(self, rows: Sequence[Row]) -> None:
        make = self._entities.Metric
        metrics = [make(key, x, int(row.seconds * 1000), row.step) for row in rows for key, x in row.values.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.id, metrics=metrics[start : start + BATCH])

    def finish(self, outcome: Outcome) -> None:
        self._client.set_terminated(self.id, status=outcome.upper())


TRACKERS: dict[str, type[WandbRun | MlflowRun]] = {"wandb": WandbRun, "mlflow": MlflowRun}


def require_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed, before anything has begun."""
    if name not in TRACKERS:
        raise UsageError(f"unknown tracker '{name}'{did_you_mean(name, TRACKERS)} (there are {', '.join(TRACKERS)})")
    spec = find_spec(name)
    if spec is None or spec.origin is None:  # no origin: a mere folder of that name, such as wandb's own output
        raise UsageError(f'the tracker {name} is not installed; pip install "surefoot[{name}]"')


class TrackerLog(Callback):
    """Mirrors a run to one tracker, from a thread of its own; an error there ends the mirror, with a warning.

    Rows have the `step` and the names of `metrics.jsonl`, and `steps_per_second`; what is missing is left out. The
    final evaluation is `final_eval_mean_return` and so on, as under `eval` in `result.json`. A resumed run goes on in
    the same tracker run, by its id in `trackers.json`; rows beyond the checkpoint are sent again.
    """

    def __init__(self, name: str, run: RunDirectory, warn: Callable[[str], None]) -> None:
        require_tracker(name)
        self._name, self._run, self._warn = name, run, warn
        self._queue: queue.Queue[Row | Outcome] = queue.Queue(QUEUE_ROWS)
        self._thread: threading.Thread | None = None
        self._troubles: list[str] = []  # the main thread tells them: who hears them may draw on the terminal
        self._dropped, self._trained = 0, False

    def on_start(self, trainer: Trainer) -> None:
        self._handled = sys.exc_info()[1]  # somebody may train while handling an error of theirs
        for variable, value in TRACKERS[self._name].environment.items():
            os.environ.setdefault(variable, value)
        config = trainer.config.flat()
        self._thread = threading.Thread(target=self._work, args=(config,), name=f"surefoot-{self._name}", daemon=True)
        self._thread.start()

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self._tell()

    def on_log(self, trainer: Trainer, row: dict[str, Any], timing: dict[str, float]) -> None:
        self._send(Row(row["step"], time.time(), {**row, "steps_per_second": timing["steps_per_second"]}))

    def on_end(self, trainer: Trainer) -> None:
        self._trained = True
        outcome = self._outcome(trainer)
        if outcome == "finished" and evaluation_follows(trainer):
            atexit.register(self._finish_at_exit, trainer)
        else:
            self._finish(outcome)
            self._tell()

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        if self._trained:  # those before are in their rows
            values = {f"final_eval_{name}": value for name, value in evaluation.summary().items()}
            self._send(Row(trainer.step, time.time(), values, final=True))
            self._finish("finished")
            self._tell()

    def _outcome(self, trainer: Trainer) -> Outcome:
        error = sys.exc_info()[1]
        if trainer.suspended or isinstance(error, KeyboardInterrupt):
            return "killed"
        return "finished" if trainer.over and error is self._handled else "failed"

    def _finish_at_exit(self, trainer: Trainer) -> None:
        """The final evaluation never came. There is nobody left to warn."""
        self._finish("killed" if trainer.suspended else "failed")

    def _send(self, row: Row) -> None:
        if self._thread is not None and self._thread.is_alive():
            try:
                self._queue.put_nowait(row)
            except queue.Full:
                self._dropped += 1

    def _finish(self, outcome: Outcome) -> None:
        """Let the thread come to its end, or leave it to its own."""
        atexit.unregister(self._finish_at_exit)
        if self._thread is None:
            return
        limit = KILLED_SECONDS if outcome == "killed" else END_SECONDS
        deadline = time.monotonic() + limit
        with suppress(queue.Full, KeyboardInterrupt):  # Ctrl-C: somebody will not wait, and the run is over anyway
            if self._thread.is_alive():
                self._queue.put(outcome, timeout=limit)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._troubles.append(f"not done {limit:g} s after the run; it may lack the last rows")
        elif self._dropped:
            self._troubles.append(f"too slow for {self._dropped} rows; it lacks them")
        self._thread = None

    def _tell(self) -> None:
        while self._troubles:
            self._warn(f"{self._name}: {self._troubles.pop(0)}")

    def _work(self, config: dict[str, Any]) -> None:
        """In the thread: everything that touches the tracker's package."""
        tracker = TRACKERS[self._name]
        try:
            mirror = tracker(run_name(self._run), self._run.path, config, read_ids(self._run).get(self._name))
            self._keep(mirror.id)
            while True:
                waiting = [self._queue.get()]
                while not self._queue.empty():
                    waiting.append(self._queue.get())
                mirror.log([row._replace(values=numbers(row.values)) for row in waiting if isinstance(row, Row)])
                if isinstance(waiting[-1], str):
                    mirror.finish(waiting[-1])
                    return
        except BaseException as error:  # some clients raise SystemExit
            last_line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            self._troubles.append(f"{shorten(last_line, 300)}; the run goes on without it ({tracker.hint})")

    def _keep(self, run_id: str) -> None:
        try:
            with _ids:
                write_json(self._run.path / "trackers.json", {**read_ids(self._run), self._name: run_id})
        except OSError as error:
            self._troubles.append(f"its id could not be kept ({error}); a resumed run will begin another one there")


_ids = threading.Lock()  # of trackers.json, which the trackers of a run share


def read_ids(run: RunDirectory) -> dict[str, str]:
    """By tracker; none if the file is missing or damaged."""
    with suppress(OSError, ValueError):
        found = read_json(run.path / "trackers.json")
        if isinstance(found, dict):
            return found
    return {}


def run_name(run: RunDirectory) -> str:
    """The run's path below `runs/`, or elsewhere its own name."""
    path, root = run.path.resolve(), ROOT.resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """As `metrics.jsonl` has them, without what is null there and without the step."""
    found = {name: json_number(name, value) for name, value in values.items() if name != "step"}
    return {name: value for name, value in found.items() if value is not None}


def evaluation_follows(trainer: Trainer) -> bool:
    """The final evaluation comes after `on_end`, unless there is only a ready-made vector env to do it in."""
    from surefoot.envs.vector_envs import VectorEnvs

    config = trainer.config.run
    return config.eval_episodes > 0 and (config.eval_env is not None or not isinstance(trainer.envs, VectorEnvs))
