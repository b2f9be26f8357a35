"""Shows the progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from surefoot.text import counted, print, printable
from surefoot.training.callbacks import Callback
from surefoot.training.reports.screen import can_redraw, clock, fit, join, pack, width_of
from surefoot.training.reports.streams import unfailing

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from surefoot.training.evaluation.result import Evaluation
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow

LINE_SECONDS = 2.0  # between plain lines
COLUMNS = (  # metric, heading, format (z: no negative zero)
    ("kl", "KL", "{:z.4f}"),
    ("clip_fraction", "clipped", "{:.0%}"),
    ("entropy", "entropy", "{:z.2f}"),
    ("explained_variance", "expl. var.", "{:z.2f}"),
)


def make_progress(*, enabled: bool, to_stderr: bool) -> Progress:
    """A live table where it can be redrawn, plain lines elsewhere, nothing if not wanted."""
    stream: TextIO | None = sys.stderr if to_stderr else sys.stdout
    if not enabled or stream is None or stream.closed:
        return Progress()
    stream = unfailing(stream)
    return LiveProgress(stream) if can_redraw(stream) else LineProgress(stream)


class Progress(Callback):
    """Shows nothing."""

    reads_tensors = False

    @contextmanager
    def evaluating(self, episodes: int) -> Iterator[None]:
        """Context around the final evaluation."""
        yield


class LineProgress(Progress):
    """One plain line per log row, at most every two seconds, and the last."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self._last_time = stream, 0.0
        self._last_row: tuple[MetricsRow, dict[str, float]] | None = None

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        now = perf_counter()
        self._last_row = (row, timing)
        if now - self._last_time >= LINE_SECONDS:
            self._last_time = now
            self._print(trainer)

    def on_end(self, trainer: Trainer) -> None:
        if self._last_row is not None:
            self._print(trainer)

    def _print(self, trainer: Trainer) -> None:
        assert self._last_row is not None
        row, timing = self._last_row
        self._last_row = None
        cells = [
            _step(trainer, int(row["step"] or 0)),
            f"{timing['steps_per_second']:>8,.0f} steps/s",
            f"return {_number(trainer.recent_return)}",
            *(f"{heading} {form.format(row[name])}" for name, heading, form in COLUMNS if row.get(name) is not None),
        ]
        self._say(join(cells, self.stream))

    def on_try(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self._say(fit(describe_try(trainer, evaluation), self.stream))

    def on_warning(self, trainer: Trainer, message: str) -> None:
        self._say(fit(f"warning: {message}", self.stream))

    def _say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    @contextmanager
    def evaluating(self, episodes: int) -> Iterator[None]:
        self._say(f"evaluating greedily over {counted(episodes, 'episode')}")
        yield


class LiveProgress(Progress):
    """A progress bar, speed, time split and key metrics, redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        no_color = bool(os.environ.get("NO_COLOR"))
        self._console = Console(file=stream, force_terminal=stream.isatty(), no_color=no_color, highlight=False)
        self._stream = stream
        self._live = Live(console=self._console, auto_refresh=False)  # no thread of its own
        self._row: dict[str, float] = {}
        self._next = 0.0

    def on_start(self, trainer: Trainer) -> None:
        self._live.start()

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        now = perf_counter()
        self._row.update(metrics)  # the last update is drawn at the end, whenever it was
        if now >= self._next:  # drawing takes a millisecond or two; eight times a second is enough
            self._next = now + 0.125
            self._live.update(self._table(trainer), refresh=True)

    def on_try(self, trainer: Trainer, evaluation: Evaluation) -> None:
        self._console.print(describe_try(trainer, evaluation), markup=False, highlight=False)

    def on_warning(self, trainer: Trainer, message: str) -> None:
        self._console.print(printable(f"warning: {message}"), style="yellow", markup=False, highlight=False)

    def on_end(self, trainer: Trainer) -> None:
        if self._row:
            self._live.update(self._table(trainer), refresh=True)
        self._live.stop()

    def _table(self, trainer: Trainer) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        total = trainer.config.run.total_steps
        left = (total - trainer.step) / trainer.steps_per_second if trainer.steps_per_second else 0.0
        vital = [f"{heading} {form.format(self._row[name])}" for name, heading, form in COLUMNS if name in self._row]
        episodes = f"mean of the last {len(trainer.recent)} of {trainer.episodes:,} episodes"
        rows: dict[str, list[tuple[str, str]]] = {  # heading -> cells with their style
            "steps": [
                (f"{trainer.step:,} of {total:,}", ""),
                (f"{clock(trainer.seconds)} gone, {clock(left)} left", "dim"),
            ],
            "speed": [(f"{trainer.steps_per_second:,.0f} steps/s", ""), (_split(trainer.timer.shares()), "dim")],
            "return": [(_number(trainer.recent_return), "bold"), (episodes, "dim")],
            "update": [(f"{trainer.update:,}", ""), *((cell, "") for cell in vital)],
        }
        width = width_of(self._stream)
        if width is not None:  # rich would measure the standard streams, which may not be this one
            self._console.width = width
        label = 10 if self._console.width >= 60 else 6
        room = self._console.width - label - 2
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", style="dim", width=label)
        table.add_column()
        bar = ProgressBar(total=total, completed=trainer.step, width=min(44, room), complete_style="cyan")
        table.add_row(f"{trainer.step / total:.0%}", bar)
        for heading, cells in rows.items():
            table.add_row(heading, _lines(cells, room))
        return table

    @contextmanager
    def evaluating(self, episodes: int) -> Iterator[None]:
        with self._console.status(f"evaluating greedily over {counted(episodes, 'episode')}"):
            yield


def _lines(cells: list[tuple[str, str]], width: int) -> Text:
    """Cells side by side, on several lines if one is too narrow."""
    from rich.text import Text

    text = Text()
    for number, line in enumerate(pack([len(cell) for cell, _ in cells], width, 3)):
        text.append("\n" if number else "")
        for place, index in enumerate(line):
            text.append("   " if place else "").append(*cells[index])
    return text


def describe_try(trainer: Trainer, evaluation: Evaluation) -> str:
    """One line about an attempt at the target return."""
    wanted, found = trainer.config.run.target_return, evaluation.mean_return
    assert wanted is not None
    missing = wanted - found
    near = f"{missing:.1g}" if missing < 0.01 else as_return(missing)
    outcome = "reached" if missing <= 0 else f"{near} to go"
    episodes = counted(evaluation.episodes, "episode")
    played = f"greedy return {as_return(found, wanted)} over {episodes}"
    return f"{_step(trainer, trainer.step)}  {played}  target {wanted:g}: {outcome}"


def _step(trainer: Trainer, step: int) -> str:
    return f"step {step:>9,}/{trainer.config.run.total_steps:,}"


def as_return(value: float, *beside: float) -> str:
    """One decimal, or two if it and the numbers `beside` it are all small: FrozenLake's 0.15 must not become 0.2."""
    digits = 1 if max(abs(number) for number in (value, *beside)) >= 10.0 else 2
    return f"{round(value, digits) + 0.0:.{digits}f}"  # never -0.0


def _number(value: float | None) -> str:
    return "–" if value is None else as_return(value)


def _split(shares: dict[str, float]) -> str:
    names = [*(["iterate"] if "iterate" in shares else []), "env", "act", "learn"]
    return " · ".join(f"{name} {shares.get(name, 0.0):.0%}" for name in names)
