"""How far a sweep is: the steps of its runs, what failed and why, and the time that is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from surefoot.errors import SurefootError
from surefoot.runs import Run, RunDirectory
from surefoot.runs.files import read_regular
from surefoot.sweep.folder import OUTPUT, State
from surefoot.sweep.plan import Planned

Stage = Literal["waiting", "running", "done", "unfinished", "failed"]
MOST_OUTPUT = 2**24  # bytes of a run's output that are searched for its last message


@dataclass
class Tracked:
    """A run of the sweep and its progress."""

    run: Planned
    directory: RunDirectory
    before: State  # its state when the sweep began
    stage: Stage = "waiting"
    error: str | None = None
    step: int = 0
    first_step: int | None = None  # the first step that this sweep saw
    episode_return: float | None = None
    started: float = 0.0
    seconds: float = 0.0  # time spent in this sweep
    losses: int = 0  # how often its node was lost
    _offset: int = 0

    @property
    def name(self) -> str:
        return self.run.name

    def start(self) -> None:
        self.stage, self.started = "running", perf_counter()

    def look(self) -> None:
        """Read what the run has logged since the last time."""
        if self.stage == "running":
            self.seconds = perf_counter() - self.started
        with suppress(SurefootError, OSError):  # not there yet, or unreadable: its exit code will tell
            rows, self._offset = Run(self.directory).metrics_since(self._offset)
            for row in rows:
                step, found = row.get("step"), row.get("episode_return")
                if isinstance(step, int):
                    self.step = step
                if isinstance(found, (int, float)):
                    self.episode_return = float(found)
            if rows and self.first_step is None and self.before == "cut off":
                self.first_step = self.step

    def lose(self) -> None:
        """Its node was lost: it waits to be continued from what is in its directory."""
        self.losses += 1
        self.stage, self.before = "waiting", "cut off" if os.path.lexists(self.directory.manifest) else "missing"

    def end(self, code: int, *, stopped: bool, lost: str = "") -> None:
        """After its process ended. `stopped`: the sweep had asked it to. `lost`: why its node was given up."""
        self.look()
        state = "unknown"
        with suppress(SurefootError, OSError):
            status = self.directory.read_status()
            state, step = str(status.get("state")), status.get("step")
            if isinstance(step, int):  # rows of metrics are fewer
                self.step = step
        if code == 0 and state == "done":
            self.stage = "done"
        elif stopped or (code == 0 and state == "interrupted"):
            self.stage = "unfinished"
        else:
            self.stage, self.error = "failed", last_words(self.directory, code)
        if self.stage == "failed" and lost:
            self.error = f"its node was lost {self.losses + 1} times, last because: {lost}"

    @property
    def eval_return(self) -> float | None:
        """The return of the final evaluation."""
        with suppress(SurefootError, OSError):
            found = self.directory.read_status().get("eval_return")
            return float(found) if isinstance(found, (int, float)) else None
        return None

    def summary(self) -> dict[str, object]:
        """What `--json` prints about it."""
        config = self.run.point.config
        return {
            "run_dir": str(self.directory.path),
            "env": config.env.env,
            "algo": config.run.algo,
            "seed": self.run.seed,
            "settings": self.run.point.values,
            "state": self.stage,
            "skipped": self.before == "done",
            "return": self.eval_return if self.stage == "done" else None,
            "seconds": round(self.seconds, 3),
            "error": self.error,
        }


def saved_step(directory: RunDirectory) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    with suppress(SurefootError, OSError):
        return Run(directory).checkpoints.latest or 0
    return 0


def last_words(directory: RunDirectory, code: int) -> str:
    """Why a run failed, in a line: the last message of ours in its output, or else what killed it."""
    if code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        return f"killed by signal {-code}"
    with suppress(OSError):
        lines = read_regular(directory.path / OUTPUT, MOST_OUTPUT).decode(errors="replace").splitlines()
        said = [line for line in lines if line.strip()]
        ours = [line for line in said if line.startswith("surefoot: ")]
        for line in (*ours[-1:], *said[-1:]):
            return line.removeprefix("surefoot: ")
    return f"ended with exit code {code}"


def seconds_left(runs: Iterable[Tracked], slots: int) -> float | None:
    """An estimate from how long the steps of each env and algorithm took so far; None: nothing is known yet."""
    all_runs = list(runs)
    seen = [run for run in all_runs if run.seconds and run.step > (run.first_step or 0)]
    if not seen:
        return None
    spent: dict[tuple[str, str], tuple[float, int]] = {}
    for run in seen:
        seconds, steps = spent.get(_kind(run), (0.0, 0))
        spent[_kind(run)] = (seconds + run.seconds, steps + run.step - (run.first_step or 0))
    total_seconds, total_steps = (sum(column) for column in zip(*spent.values(), strict=True))
    rest: list[float] = []
    for run in all_runs:
        if run.stage in ("waiting", "running"):
            seconds, steps = spent.get(_kind(run), (total_seconds, total_steps))
            rest.append(max(0, run.run.total_steps - run.step) * seconds / steps)
    return max(sum(rest) / slots, max(rest, default=0.0))


def _kind(run: Tracked) -> tuple[str, str]:
    return run.run.point.config.env.env, run.run.point.config.run.algo
