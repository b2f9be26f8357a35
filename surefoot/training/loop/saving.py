"""When a run writes a checkpoint, and what happens if the disk refuses it."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Literal

from surefoot.runs.checkpoints import KEEP
from surefoot.training.loop.state import take_snapshot
from surefoot.training.loop.writing import Writing

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0
TOO_MUCH, WATCHED_SECONDS = 0.2, 10.0  # warn if saving takes this fraction of at least this many seconds
SHORT_RUN, MANY_SAVES = 1.0, 20  # a run that is over sooner is judged at its end, from this many seconds and saves on
TRIES_AGAIN = ". Training continues and tries again"  # ends a warning; not true at the end of a run


class Saving:
    """Saves by steps (`every`) or by the clock. When a checkpoint is written changes nothing else in the run.

    A checkpoint is serialised between two updates and written during the next ones, one checkpoint at a time. If the
    disk cannot keep up with `every`, the next checkpoint is postponed, so that training need not wait.
    """

    patient = False  # wait instead of postponing: then the steps do not depend on the disk

    def __init__(self, every: int | None, keep: int | Literal["all"] = KEEP) -> None:
        self.every = every
        self.keep = None if keep == "all" else keep  # how many of the newest to keep, besides the best; None: all
        self.saved_step = -1  # step of the last checkpoint on disk; -1: none yet
        self.behind = False  # there was an update since the last one was taken
        self.asked: str | None = None  # the signal that requested one
        self.agreed: bool | None = None  # what several processes have agreed on about whether one is due
        self._writing: Writing | None = None
        self._tried_step, self._tried_at = 0, perf_counter()  # when one was last attempted
        self._begin, self._seconds, self._saves, self._complained = perf_counter(), 0.0, 0, False  # the cost of saving

    def ask(self, why: str) -> None:
        """Request a checkpoint after the current update."""
        self.asked = why

    def due(self, step: int) -> bool:
        if self.agreed is not None:
            return self.agreed
        if self.asked is not None:
            return True
        if self._writing is not None and not self.patient and not self._writing.done(0.0):
            return False
        if self.every is None:
            return perf_counter() - self._tried_at >= CHECKPOINT_SECONDS
        return step - self._tried_step >= self.every

    def save(self, trainer: Trainer, *, best: bool, mid_rollout: bool, wait: bool) -> bool:
        """False if the disk refused it, which does not end the run. Without `wait`, that is found out later."""
        if trainer.run is None:
            if trainer.group.size > 1:  # the first process saves the envs of all
                trainer.collector.state_dict(mid_rollout=mid_rollout)
                self.asked, self.behind = None, False
            return True
        begin, asked = perf_counter(), self.asked
        self.settle(trainer)
        self.asked = None
        self._tried_step, self._tried_at, self.behind = trainer.step, begin, False
        snapshot = take_snapshot(trainer, mid_rollout=mid_rollout)
        run = trainer.run
        self._writing = Writing(
            run.checkpoints, snapshot, best=best, keep=self.keep, handles=run.open_handles(), lock=run.hold
        )
        written = self.settle(trainer) if wait or asked else True
        if written and asked:
            self._answer(trainer, asked)
        self._count(trainer, perf_counter() - begin)
        return written

    def settle(self, trainer: Trainer, patience: float | None = None) -> bool:
        """Wait for the checkpoint being written, if any. Returns whether it is on disk."""
        writing = self._writing
        if writing is None:
            return True
        assert trainer.run is not None
        if not writing.done(patience):
            return False
        if isinstance(writing.error, OSError):
            trainer.follow()
            if writing.root != trainer.run.checkpoints:  # renamed while writing
                self._writing = writing = Writing(
                    trainer.run.checkpoints, writing.snapshot, best=writing.best, keep=self.keep
                )
                writing.done()
        self._writing = None
        trainer.deadline.expect(writing.seconds)  # the last checkpoint will take about as long
        if isinstance(writing.error, OSError):
            self._refused(trainer, writing.snapshot.step, writing.error)
            return False
        if writing.error is not None:
            raise writing.error
        self.saved_step = writing.snapshot.step
        trainer.recovered("checkpoint", self.saved_step)
        return True

    def look(self, trainer: Trainer) -> None:
        """Between two updates: check on the checkpoint being written, and save if a signal asked for it."""
        if self._writing is not None and self._writing.done(0.0):
            self.settle(trainer)
        if self.asked is not None and not self.behind and self.settle(trainer):
            asked, self.asked = self.asked, None
            self._answer(trainer, asked)

    def _answer(self, trainer: Trainer, asked: str) -> None:
        trainer.warn(f"{asked}: the checkpoint of step {self.saved_step:,} is written; training continues")

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None

    def _refused(self, trainer: Trainer, step: int, error: OSError) -> None:
        self.behind = True
        stands = f"that of step {self.saved_step:,} stands" if self.saved_step >= 0 else "there is none yet"
        assert trainer.run is not None
        trainer.trouble(
            "checkpoint",
            f"the checkpoint of step {step:,} could not be written to {trainer.run.checkpoints}: "
            f"{error.strerror}; {stands}{TRIES_AGAIN}",
        )

    def _count(self, trainer: Trainer, seconds: float) -> None:
        self._seconds += seconds
        self._saves += 1
        lasted = perf_counter() - self._begin
        share = self._seconds / lasted
        judged = lasted > (SHORT_RUN if trainer.over and self._saves >= MANY_SAVES else WATCHED_SECONDS)
        if share > TOO_MUCH and judged and not self._complained:
            self._complained = True
            every = "a minute" if self.every is None else f"every {self.every:,} steps"
            trainer.warn(
                f"saving a checkpoint {every} takes {share:.0%} of the time; give --checkpoint-every a larger number"
                + ("" if self.every is None else ", or leave it out: then there is one a minute")
            )

    def resumed(self, step: int) -> None:
        """The run was resumed from the checkpoint of this step."""
        self.saved_step = self._tried_step = step
