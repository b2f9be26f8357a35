"""How long a tune may take, and how long it has taken, over all commands that worked on it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from surefoot.errors import SurefootError, UsageError
from surefoot.runs.files import read_json, write_json
from surefoot.settings import Seconds, coerce
from surefoot.training.reports.screen import clock

DEFAULT = "1h"
FEWEST = 2  # trials: the default and another
NOTE_EVERY = 5.0  # seconds between notes of the time; a kill loses no more


@dataclass(frozen=True)
class Budget:
    """A number of trials, or seconds. The check of the result on fresh seeds is included in the seconds."""

    trials: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.trials} trials" if self.trials is not None else clock(self.seconds or 0.0)


def parse_budget(text: str | float) -> Budget:
    """`30m`, `2h`, a number of seconds, or `200-trials`."""
    match = re.fullmatch(r"\s*(\d{1,9})[\s-]*trials?\s*", str(text))
    if match:
        if int(match[1]) < FEWEST:
            raise UsageError(f"budget={text}: the first trial is the default; give at least {FEWEST}-trials")
        return Budget(trials=int(match[1]))
    try:
        seconds = coerce("budget", text, Seconds)
    except UsageError:
        raise UsageError(f"budget={text!r} is neither a time nor trials; write it as 30m, 2h or 200-trials") from None
    if not 0 < seconds < float("inf"):
        raise UsageError(f"budget={text} is too small; write it as 30m, 2h or 200-trials")
    return Budget(seconds=seconds)


class Stopwatch:
    """The seconds that a tune has taken so far. Kept in a file every few seconds, so that a kill loses few."""

    def __init__(self, file: Path) -> None:
        self._file, self._begun, self._noted = file, perf_counter(), 0.0
        self._before = 0.0
        with suppress(SurefootError):
            before = read_json(file).get("seconds")
            self._before = float(before) if isinstance(before, (int, float)) and 0 <= before < 1e12 else 0.0

    @property
    def seconds(self) -> float:
        return self._before + perf_counter() - self._begun

    def note(self, *, now: bool = False) -> None:
        """Keep the time, if that was not done a moment ago. A full disk is reported by what matters more."""
        if now or perf_counter() - self._noted >= NOTE_EVERY:
            self._noted = perf_counter()
            with suppress(OSError):
                write_json(self._file, {"seconds": round(self.seconds, 1)})
