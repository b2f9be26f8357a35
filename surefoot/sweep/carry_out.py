"""Carries out a plan: starts what is missing, continues what was cut off, and stops in order when asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from surefoot.errors import SurefootError
from surefoot.sweep.folder import OUTPUT, SweepFolder, states
from surefoot.sweep.plan import Plan
from surefoot.sweep.pool import Pool, Work
from surefoot.sweep.progress import Tracked
from surefoot.training.life.signals import ONLY_INSTEAD_OF_DEATH, STOPPING, WARNING

GLANCE = 0.25  # seconds between two looks at the runs
LOSSES = 5  # how often a run is started again after its node was lost


class Watcher(Protocol):
    """Shows the progress of a sweep."""

    def start(self, runs: Sequence[Tracked], slots: int) -> None: ...

    def update(self) -> None: ...

    def ended(self, run: Tracked) -> None: ...

    def lost(self, run: Tracked, why: str) -> None: ...

    def stopping(self) -> None: ...

    def stop(self) -> None: ...


def track(folder: SweepFolder, plan: Plan) -> list[Tracked]:
    """Every run of the plan, with its state in the folder."""
    found, broken = states(folder, plan)
    tracked = []
    for run in plan.runs:
        one = Tracked(run, folder.directory(run), found.get(run.name, "cut off"))
        if one.before == "done":
            one.stage, one.step = "done", run.total_steps
        if run.name in broken:
            one.stage, one.error = "failed", broken[run.name]
        tracked.append(one)
    return tracked


class Stopper:
    """Turns signals into requests to the pool: first to save and end, then to end at once, then to be killed.

    A scheduler's warning only makes the runs save.

    `enough`: when to stop without a signal; that is passed on as the first request.
    """

    def __init__(self, enough: Callable[[], bool]) -> None:
        self.received = 0  # the first signal
        self.pending = 0  # requests not passed on to the pool yet
        self.warned = False  # not passed on to the pool yet
        self._count = 0
        self._enough = enough

    @property
    def over(self) -> bool:
        """Whether nothing more is to be started."""
        return bool(self.received or self._count)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        self.pending += 1

    def _note_warning(self, number: int, frame: FrameType | None) -> None:
        self.warned = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = dict.fromkeys(STOPPING, self._note) | dict.fromkeys(WARNING, self._note_warning)
        before = {
            number: signal.signal(number, handler)
            for number, handler in handlers.items()
            if number not in ONLY_INSTEAD_OF_DEATH or signal.getsignal(number) is signal.SIG_DFL
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_on(self, pool: Pool) -> bool:
        """Whether the runs were asked to end."""
        if self.warned:
            self.warned = False
            pool.save()
        if not self.over and self._enough():
            self.pending += 1
        if not self.pending:
            return False
        while self.pending:
            self.pending -= 1
            self._count += 1
            pool.stop(at_once=self._count > 2)
        return True


def work_on(run: Tracked, flags: Sequence[str]) -> Work:
    """The command that starts or continues a run. `flags`: added to it."""
    path = str(run.directory.path.absolute())
    again = ("resume", path, *flags)
    words = again if run.before == "cut off" else (*run.run.words, f"--run-dir={path}", *flags)
    return Work(run.name, words, run.directory.path.absolute() / OUTPUT, again)


def carry_out(
    runs: Sequence[Tracked],
    pool: Pool,
    watcher: Watcher,
    flags: Sequence[str] = (),
    *,
    enough: Callable[[], bool] = lambda: False,
) -> int:
    """Run until every run has ended or failed. Returns the number of the signal that stopped it earlier, or 0.

    `enough`: asked at every look; once it is true, nothing more is started, and the runs under way save and end.
    """
    waiting = [run for run in runs if run.stage == "waiting"]
    running: dict[str, Tracked] = {}
    stopper = Stopper(enough)
    watcher.start(runs, pool.slots)
    try:
        with stopper.installed():
            while running or (waiting and not stopper.over):
                while waiting and len(running) < pool.slots and not stopper.over:
                    run = waiting.pop(0)
                    pool.submit(work_on(run, flags))
                    run.start()
                    running[run.name] = run
                for ended in pool.poll(GLANCE):
                    run = running.pop(ended.name)
                    if ended.lost and run.losses < LOSSES and not stopper.over:
                        run.lose()
                        waiting.insert(0, run)
                        watcher.lost(run, ended.lost)
                        continue
                    run.end(ended.code, stopped=stopper.over, lost=ended.lost)
                    watcher.ended(run)
                if stopper.pass_on(pool):
                    watcher.stopping()
                for run in running.values():
                    run.look()
                watcher.update()
    except SurefootError as error:  # the pool is lost
        for run in running.values():
            run.stage, run.error = "failed", str(error)
        raise
    finally:
        watcher.stop()
    return stopper.received
