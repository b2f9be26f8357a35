"""Iterations that an engine does whole, and the next one begun while the host deals with the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.training.callbacks import Callback

if TYPE_CHECKING:
    from surefoot.engine.contract import Done, Iterations
    from surefoot.training.trainer import Trainer


class Ahead:
    """Asks for whole iterations where nobody wants to see a rollout, and one ahead where nobody looks at the policy.

    An iteration that was begun too early is taken back: whoever needs the run's present state calls `settle`.
    """

    def __init__(self, whole: Iterations) -> None:
        self.whole = whole

    def take(self, trainer: Trainer) -> Done | None:
        """The next iteration. None: it has to be done in the ordinary way."""
        whole, done = self.whole, None
        if whole.busy or (self._unwatched(trainer) and whole.begin(trainer.update, trainer.remaining)):
            done = whole.end()
        if done is None:
            whole.leave()
            return None
        trainer.watch.skip()
        step = trainer.step + done.steps
        if self._unwatched(trainer) and self._quiet(trainer, step):
            whole.begin(trainer.update + 1, trainer.remaining_at(step))
        return done

    def settle(self) -> None:
        self.whole.take_back()

    @staticmethod
    def _unwatched(trainer: Trainer) -> bool:
        """Whether nobody wants to see the next rollout."""
        shown = (one for one in trainer.callbacks if one.reads_tensors)
        return not trainer.watch.due and all(type(one).on_rollout is Callback.on_rollout for one in shown)

    @staticmethod
    def _quiet(trainer: Trainer, step: int) -> bool:
        """Whether nobody will look at the policy after the update that ends at this step, as far as can be told."""
        if trainer.stop_reason is not None or trainer.spent_at(step) or trainer.target.open:
            return False
        if trainer.saving.due(step) or trainer.selection.due(step):
            return False
        shown = (one for one in trainer.callbacks if one.reads_tensors)
        return all(type(one).on_update is Callback.on_update and type(one).on_log is Callback.on_log for one in shown)
