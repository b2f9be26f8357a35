"""Carries out the runs of a tune with one pool, and keeps the time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence

from surefoot.errors import SurefootError
from surefoot.sweep.carry_out import Watcher, carry_out, track
from surefoot.sweep.folder import SweepFolder
from surefoot.sweep.plan import Plan, Planned
from surefoot.sweep.pool import Pool
from surefoot.sweep.progress import Tracked
from surefoot.training.life.signals import Interrupted
from surefoot.tuning.budget import Stopwatch

FULL = os.strerror(errno.ENOSPC)


class TrialRunner:
    """`again`: the command that continues the tune. The pool is made when the first run needs it."""

    def __init__(
        self,
        make_pool: Callable[[], Pool],
        make_watcher: Callable[[], Watcher],
        stopwatch: Stopwatch,
        *,
        flags: Sequence[str],
        again: str,
    ) -> None:
        self._make_pool, self._make_watcher, self._stopwatch = make_pool, make_watcher, stopwatch
        self._flags, self._again = flags, again
        self._pool: Pool | None = None
        self._under_way: Sequence[Tracked] = ()

    @property
    def slots(self) -> int:
        return max(1, self.pool.slots)

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            self._pool = self._make_pool()
        return self._pool

    def close(self) -> None:
        """Release the pool; the next run would get a new one."""
        self._stopwatch.note(now=True)
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def seconds_per_step(self) -> float:
        """The seconds per step of the slowest run under way; 0: nothing is known yet."""
        return seconds_per_step(self._under_way)

    def carry(
        self, folder: SweepFolder, runs: Iterable[Planned], enough: Callable[[], bool] = lambda: False
    ) -> list[Tracked]:
        """Every run of the list, carried out unless it was before. Raises Interrupted after a signal."""
        tracked = track(folder, Plan(tuple(runs)))
        self._under_way, stopped = tracked, False

        def is_enough() -> bool:
            nonlocal stopped
            stopped = stopped or enough()
            return stopped

        if any(run.stage == "waiting" for run in tracked) and not is_enough():
            watcher = _Timed(self._make_watcher(), self._stopwatch)
            number = carry_out(tracked, self.pool, watcher, self._flags, enough=is_enough)
            self._stopwatch.note(now=True)
            if stopped:
                self.close()  # a pool that was stopped may start nothing more
            if number:
                raise Interrupted(
                    f"after {self._stopwatch.seconds:.0f} s; every run is saved. To continue:\n{self._again}",
                    128 + number,
                )
        for run in tracked:
            if run.stage == "failed" and FULL in (run.error or ""):
                raise SurefootError(f"{run.directory.path}: {run.error}; free some space, then continue: {self._again}")
        return tracked


def seconds_per_step(runs: Iterable[Tracked]) -> float:
    """The seconds per step of the slowest run that was carried out here; 0: there was none."""
    spent = [
        run.seconds / (run.step - (run.first_step or 0))
        for run in runs
        if run.seconds and run.step > (run.first_step or 0)
    ]
    return max(spent, default=0.0)


class _Timed:
    """A watcher that keeps the time as well."""

    def __init__(self, inner: Watcher, stopwatch: Stopwatch) -> None:
        self._inner, self._stopwatch = inner, stopwatch
        self.start, self.ended, self.lost = inner.start, inner.ended, inner.lost
        self.stopping, self.stop = inner.stopping, inner.stop

    def update(self) -> None:
        self._stopwatch.note()
        self._inner.update()
