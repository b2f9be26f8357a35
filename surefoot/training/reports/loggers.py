"""Writes metrics to the run's files and to TensorBoard."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from surefoot.errors import UsageError
from surefoot.runs.events import EventFile
from surefoot.training.callbacks import Callback
from surefoot.training.evaluation.video import record

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory
    from surefoot.runs.directory import Logs
    from surefoot.training.trainer import Trainer
    from surefoot.types import GymEnv, MetricsRow


def json_number(name: str, value: float | None) -> float | int | None:
    """A row's value as JSON can hold it: a number, or null for what is missing or not finite."""
    if value is None or isinstance(value, int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"the row's {name!r} is {value!r}; a callback may add numbers only") from None
    return number if math.isfinite(number) else None


class OnlyOriginal(Callback):
    """Runs between the user's callbacks and ours, so that a forked copy of the process never writes files."""

    reads_tensors, may_wait = False, True

    def _check(self, trainer: Trainer, *_: object) -> None:
        trainer.original.end_copies()

    _always: Callable[..., None] = _check
    on_start = on_rollout = on_update = on_updates = on_log = _always
    on_evaluation = on_try = on_warning = on_end = on_exit = _always


class FileLog(Callback):
    """Writes `metrics.jsonl`, `timings.jsonl` (separate, so that equal runs have equal metrics) and `log.txt`.

    `EpisodeLog` writes `episodes.csv`; failures to write it are reported here.
    """

    reads_tensors, may_wait = False, True

    def __init__(self, run: RunDirectory, logs: Logs) -> None:
        self._run, self._logs, self._over = run, logs, False

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        for name, value in row.items():
            row[name] = json_number(name, value)
        self._logs.timings.write({"step": row["step"], **timing})
        self._logs.metrics.write(row)
        if self._logs.episodes.error is not None:
            self._logs.episodes.flush()
        refused = [log for log in (self._logs.metrics, self._logs.episodes) if log.error is not None]
        if not refused:
            trainer.recovered("metrics")
        else:
            trainer.follow()
            free = shutil.disk_usage(self._run.path).free
            trainer.trouble(
                "metrics",
                f"metrics could not be written to {refused[0].path}: {refused[0].error} ({free:,} bytes are "
                "free). They are kept in memory; training continues",
            )

    def on_warning(self, trainer: Trainer, message: str) -> None:
        self._run.note(f"step {trainer.step}: {message}")
        if not self._over:
            self._run.set_status("degraded" if trainer.troubles else "running", step=trainer.step, **trainer.troubles)

    def on_end(self, trainer: Trainer) -> None:
        self._over = True  # from here on, the session writes the status
        for log in self._logs:
            log.close()
        for name, log in (("metrics", self._logs.metrics), ("episodes", self._logs.episodes)):
            if lost := sum(record.count(b"\n") for record in log.pending):
                trainer.warn(f"the last {lost} rows of {name} are lost: {log.error}")


class TensorBoardLog(Callback):
    """Event files that TensorBoard reads, one scalar per metric under its own name."""

    reads_tensors, may_wait = False, True

    def __init__(self, run: RunDirectory, step: int = 0) -> None:
        # A resumed run writes another file, and tells TensorBoard to drop what was logged after its checkpoint.
        self._events = run.adopt(EventFile(run.tensorboard, purge_step=step + 1 if step else None))

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        scalars = {**row, "steps_per_second": timing["steps_per_second"]}
        del scalars["step"]
        self._events.write(int(row["step"] or 0), {name: x for name, x in scalars.items() if x is not None})

    def on_end(self, trainer: Trainer) -> None:
        self._events.close()


class VideoLog(Callback):
    """A video of one greedy episode every `video_every` steps. If it fails, the run continues with a warning."""

    reads_tensors = False

    def __init__(self, run: RunDirectory, make: Callable[[], GymEnv], every: int, step: int = 0) -> None:
        self._run, self._make, self._every = run, make, every
        self._next = step - step % every + every

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        step, config = trainer.step, trainer.config.run
        if step < self._next or trainer.abandon():
            return
        self._next = step - step % self._every + self._every
        trainer.follow()
        file = self._run.videos / f"{step}.mp4"
        try:
            file.parent.mkdir(exist_ok=True)
            with trainer.timer.phase("video"):
                record(
                    {"trained": trainer.agent},
                    self._make,
                    file,
                    seed=trainer.seed,
                    max_steps=config.eval_max_steps,
                    abandon=trainer.abandon,
                )
        except Exception as error:
            trainer.follow()  # raises if the directory was deleted meanwhile
            free = shutil.disk_usage(self._run.path).free
            trainer.trouble(
                "video",
                f"{file} could not be made: {error} ({free:,} bytes are free). Training continues and tries again",
            )
        else:
            trainer.recovered("video")
