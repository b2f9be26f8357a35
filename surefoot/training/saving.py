"""When a run writes a checkpoint, and what becomes of it on a disk that refuses."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from surefoot.training.state import save_checkpoint

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer

CHECKPOINT_SECONDS = 60.0


class Saving:
    """Checkpoints by steps (`every`) or else by the clock: when one is written changes nothing else in the run."""

    def __init__(self, every: int | None) -> None:
        self.every = every
        self.saved_step = -1  # of the last checkpoint; none yet
        self.behind = False  # something has happened since
        self._tried_step, self._tried_at = 0, perf_counter()  # when one was last attempted

    def due(self, step: int) -> bool:
        if self.every is None:
            return perf_counter() - self._tried_at >= CHECKPOINT_SECONDS
        return step - self._tried_step >= self.every

    def save(self, trainer: Trainer, *, best: bool, mid_rollout: bool) -> bool:
        """False where the disk refused it: a trouble, not the end."""
        if trainer.run is None:
            return True
        self._tried_step, self._tried_at = trainer.step, perf_counter()
        try:
            save_checkpoint(trainer.run.checkpoints, trainer, best=best, mid_rollout=mid_rollout)
        except OSError as error:
            stands = f"that of step {self.saved_step:,} stands" if self.saved_step >= 0 else "there is none yet"
            trainer.trouble(
                "checkpoint",
                f"the checkpoint of step {trainer.step:,} could not be written to {trainer.run.checkpoints}: "
                f"{error.strerror}; {stands}. Training goes on and tries again",
            )
            return False
        self.saved_step, self.behind = trainer.step, False
        trainer.recovered("checkpoint")
        return True

    def resumed(self, step: int) -> None:
        """The run goes on from the checkpoint of this step."""
        self.saved_step = self._tried_step = step
