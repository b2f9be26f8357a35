"""Shows the progress of a sweep: a bar and its runs on a terminal, a line per run elsewhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from surefoot.sweep.carry_out import Watcher
from surefoot.sweep.progress import Tracked, seconds_left
from surefoot.text import one_line, print
from surefoot.training.reports.progress import as_return
from surefoot.training.reports.screen import can_redraw, clock, fit, width_of, wrap
from surefoot.training.reports.streams import unfailing

if TYPE_CHECKING:
    from rich.table import Table

LINE_SECONDS = 30.0  # between plain lines about a sweep in which no run ends
MOST_ROWS = 16  # running runs that are listed one by one


def make_watcher(stream: TextIO | None, *, quiet: bool = False) -> Watcher:
    """A live display where it can be redrawn, plain lines elsewhere, nothing if not wanted."""
    if quiet or stream is None or stream.closed:
        return Silent()
    out = unfailing(stream)
    return Live(out) if can_redraw(out) else Lines(out)


class Silent:
    """Shows nothing."""

    def start(self, runs: Sequence[Tracked], slots: int) -> None:
        self.runs, self.slots = runs, slots

    def update(self) -> None:
        pass

    def ended(self, run: Tracked) -> None:
        pass

    def lost(self, run: Tracked, why: str) -> None:
        pass

    def stopping(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Lines(Silent):
    """A line when a run ends."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._last = perf_counter()

    def update(self) -> None:
        if perf_counter() - self._last >= LINE_SECONDS:
            self._say(counts(self.runs) + _left(self.runs, self.slots))

    def ended(self, run: Tracked) -> None:
        over = sum(one.stage not in ("waiting", "running") for one in self.runs)
        left = "" if run.stage == "unfinished" else _left(self.runs, self.slots)
        self._say(f"[{over}/{len(self.runs)}] {outcome(run)}{left}")

    def lost(self, run: Tracked, why: str) -> None:
        self._say(f"{run.name} lost its node and goes on elsewhere ({why})")

    def stopping(self) -> None:
        self._say("stopping: every run finishes its update and saves")

    def _say(self, line: str) -> None:
        self._last = perf_counter()
        print(fit(line, self.stream), file=self.stream, flush=True)


class Live(Silent):
    """A bar over all runs and a row for each that is running; failures stay above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        no_color = bool(os.environ.get("NO_COLOR"))
        self.stream = stream
        self._console = Console(file=stream, force_terminal=True, no_color=no_color, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False)  # no thread of its own
        self._note = ""

    def start(self, runs: Sequence[Tracked], slots: int) -> None:
        super().start(runs, slots)
        self._names = short_names([run.name for run in runs])
        self._live.start()
        self.update()

    def update(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def ended(self, run: Tracked) -> None:
        if run.stage == "failed":
            self._console.print(one_line(outcome(run), 1000), style="red", markup=False)

    def lost(self, run: Tracked, why: str) -> None:
        said = f"{run.name} lost its node and goes on elsewhere ({why})"
        self._console.print(one_line(said, 1000), style="yellow", markup=False)

    def stopping(self) -> None:
        self._note = "stopping: every run finishes its update and saves"

    def stop(self) -> None:
        self.update()
        self._live.stop()

    def _picture(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = width_of(self.stream)
        if width is not None:
            self._console.width = width
        room = self._console.width
        total = sum(run.run.total_steps for run in self.runs) or 1
        over = sum(run.run.total_steps if run.stage in ("done", "failed") else run.step for run in self.runs)
        rows = Table.grid()
        rows.add_row(ProgressBar(total=total, completed=over, width=min(60, room), complete_style="cyan"))
        said = wrap(counts(self.runs) + _left(self.runs, self.slots), room)
        said += wrap(self._note, room) if self._note else []
        running = [run for run in self.runs if run.stage == "running"]
        listed = [live_row(run, self._names[run.name], room) for run in running[:MOST_ROWS]]
        if len(running) > MOST_ROWS:
            listed.append(f"  and {len(running) - MOST_ROWS} more")
        for line in said:
            rows.add_row(Text(line))
        for line in listed:
            rows.add_row(Text(one_line(line, room), style="dim"))
        return rows


def counts(runs: Sequence[Tracked]) -> str:
    """`12 of 40 runs done, 2 running, 1 failed`."""
    found = Counter(run.stage for run in runs)
    cells = [f"{found['done']} of {several(len(runs))} done"]
    cells += [f"{found[stage]} {stage}" for stage in ("running", "unfinished", "failed") if found[stage]]
    return ", ".join(cells)


def several(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


def _left(runs: Sequence[Tracked], slots: int) -> str:
    if not any(run.stage in ("waiting", "running") for run in runs):
        return ""
    left = seconds_left(runs, max(slots, sum(run.stage == "running" for run in runs)))  # nodes may have been added
    return "" if left is None else f", {clock(left)} left"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names without the settings that all runs share: `ppo/gamma=0.9,total_steps=2000-s0` is `ppo/gamma=0.9-s0`."""
    parts = {name: _parts(name) for name in names}
    shared = set.intersection(*(set(settings) for _, settings, _ in parts.values())) if parts else set()
    short = {}
    for name, (folder, settings, seed) in parts.items():
        kept = ",".join(setting for setting in settings if setting not in shared)
        short[name] = folder + (f"{kept}-{seed}" if kept else seed)
    return short


def _parts(name: str) -> tuple[str, list[str], str]:
    """(folders, settings, seed) of a run's name."""
    folder, slash, last = name.rpartition("/")
    settings, _, seed = last.rpartition("-")
    return folder + slash, settings.split(",") if settings else [], seed


def live_row(run: Tracked, name: str, room: int) -> str:
    """One line; where it is too long, the middle of the name is left out."""
    share = min(1.0, run.step / run.run.total_steps)
    done = run.step - (run.first_step or 0)
    speed = f"  {done / run.seconds:,.0f} steps/s" if done > 0 and run.seconds else ""
    found = "" if run.episode_return is None else f"  return {as_return(run.episode_return)}"
    over = max(0, len(f"  {share:4.0%}  {name}{speed}{found}") - room)
    if over:
        half = max(1, (len(name) - over - 1) // 2)
        name = f"{name[:half]}…{name[-half:]}"
    return f"  {share:4.0%}  {name}{speed}{found}"


def outcome(run: Tracked) -> str:
    """How a run ended, in a line."""
    if run.stage == "failed":
        return f"{run.name} failed: {run.error}"
    if run.stage == "unfinished":
        return f"{run.name} stopped " + (f"at step {run.step:,} and saved" if run.step else "before its first update")
    found = run.eval_return
    return f"{run.name} done in {clock(run.seconds)}" + ("" if found is None else f", return {as_return(found)}")
