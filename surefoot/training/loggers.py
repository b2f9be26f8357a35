"""Where rows of metrics go: the run's own files, and TensorBoard beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from surefoot.errors import UsageError
from surefoot.runs.files import JsonLines
from surefoot.training.callbacks import Callback

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory
    from surefoot.training.trainer import Trainer


def json_number(name: str, value: Any) -> float | int | None:
    """A row's value as JSON can hold it: a number, or null for what is missing or not finite."""
    if value is None or isinstance(value, int):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"the row's {name!r} is {value!r}; a callback may add numbers only") from None
    return number if math.isfinite(number) else None


class FileLog(Callback):
    """`metrics.jsonl`, the record, and `timings.jsonl`, kept apart so that equal runs have equal metrics."""

    def __init__(self, run: RunDirectory) -> None:
        self._metrics, self._timings = JsonLines(run.metrics), JsonLines(run.timings)

    def on_log(self, trainer: Trainer, row: dict[str, Any], timing: dict[str, float]) -> None:
        for name, value in row.items():
            row[name] = json_number(name, value)
        self._metrics.append(row)
        self._timings.append({"step": row["step"], **timing})

    def on_end(self, trainer: Trainer) -> None:
        self._metrics.close()
        self._timings.close()


class TensorBoardLog(Callback):
    """Event files that TensorBoard reads, one scalar per metric under its own name."""

    def __init__(self, run: RunDirectory, step: int = 0) -> None:
        from tensorboardX import SummaryWriter

        # A resumed run writes another file and disowns what the last one wrote beyond its checkpoint.
        self._writer = SummaryWriter(str(run.tensorboard), max_queue=1000, purge_step=step + 1 if step else None)

    def on_log(self, trainer: Trainer, row: dict[str, Any], timing: dict[str, float]) -> None:
        for name, value in {**row, "steps_per_second": timing["steps_per_second"]}.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, row["step"])

    def on_end(self, trainer: Trainer) -> None:
        self._writer.close()
