"""What a population shows: one line for all of its runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from surefoot.text import print
from surefoot.training.reports.progress import LINE_SECONDS, as_return
from surefoot.training.reports.screen import join
from surefoot.training.reports.streams import unfailing

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer


class PopulationProgress:
    """A plain line every two seconds."""

    def __init__(self, *, to_stderr: bool) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        self._stream = None if stream is None else unfailing(stream)
        self._begin, self._next = perf_counter(), 0.0

    def show(self, trainers: Sequence[Trainer]) -> None:
        if self._stream is None or perf_counter() < self._next:
            return
        self._next = perf_counter() + LINE_SECONDS
        print(join(self._cells(trainers), self._stream), file=self._stream, flush=True)

    def _cells(self, trainers: Sequence[Trainer]) -> list[str]:
        steps, most = [trainer.step for trainer in trainers], max(trainer.budget for trainer in trainers)
        speed = sum(steps) / max(perf_counter() - self._begin, 1e-9)
        running = sum(not trainer.over for trainer in trainers)
        found = [trainer.recent_return for trainer in trainers]
        returns = [x for x in found if x is not None]
        shown = f"return {as_return(float(np.mean(returns)))} (least {as_return(min(returns))})" if returns else ""
        cells = [f"{running} of {len(trainers)} runs", f"step {min(steps):,}/{most:,}"]
        return [*cells, f"{speed:,.0f} steps/s in all", *([shown] if shown else [])]
