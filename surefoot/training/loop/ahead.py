"""Iterations that an engine does whole, and the next ones begun while the host deals with the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.training.callbacks import Callback

if TYPE_CHECKING:
    from surefoot.engine.contract import Done, Iterations, Several
    from surefoot.training.trainer import Trainer


def hears_of_several(callback: Callback) -> bool:
    """Whether it need not be told of every single update."""
    kind = type(callback)
    return kind.on_update is Callback.on_update or kind.on_updates is not Callback.on_updates


class Ahead:
    """Asks for whole iterations where nobody wants to see a rollout, and one ahead where nobody looks at the policy.

    An iteration that was begun too early is taken back: whoever needs the run's present state calls `settle`.
    """

    def __init__(self, whole: Iterations) -> None:
        self.whole = whole

    @property
    def at_once(self) -> bool:
        """Whether its iterations are begun with those of other runs, never by itself."""
        return self.whole.at_once

    @property
    def more(self) -> bool:
        """Whether the next iteration is over already, with nothing due before it."""
        return self.whole.more

    def turns(self, trainer: Trainer, most: int) -> tuple[float, ...]:
        """What is left of the budget before each of the next iterations, up to the first after which something is due.

        They may be begun together with those of other runs. None if somebody wants to see the next rollout.
        """
        if self.whole.busy or not self._unwatched(trainer):
            return ()
        step, each, found = trainer.step, trainer.collector.most_steps, [trainer.remaining]
        while len(found) < most and trainer.learner.adaptive_kl is None:
            step += each
            if trainer.journal.due(step) or not self._quiet(trainer, step):
                break
            found.append(trainer.remaining_at(step))
        return tuple(found)

    def take(self, trainer: Trainer) -> Done | None:
        """The next iteration. None: it has to be done in the ordinary way."""
        whole, done = self.whole, None
        if whole.busy or (self._unwatched(trainer) and whole.begin(trainer.update, trainer.remaining)):
            step = trainer.step + trainer.collector.most_steps
            if whole.ahead:
                self._begin_next(trainer, step)
            done = whole.end()
        if done is None:
            whole.leave()
            return None
        trainer.watch.skip()
        if not whole.busy:  # it had to be known first what came of this one
            self._begin_next(trainer, step)
        elif whole.ahead and self._quiet(trainer, step):  # the host may be longer busy with this one than with the next
            self._begin_next(trainer, step + done.steps, trainer.update + 2)
        return done

    def several(self, trainer: Trainer) -> Several | None:
        """All iterations that are over already, if nobody wants to hear of each. None: `take` them one by one."""
        if not self.whole.more or not all(map(hears_of_several, trainer.callbacks)):
            return None
        found = self.whole.rest()
        if found is not None:
            trainer.watch.skip(found.updates)
        return found

    def _begin_next(self, trainer: Trainer, step: int, update: int | None = None) -> None:
        """The iteration after the one that ends at this step, if nobody wants to see anything before it."""
        if self._unwatched(trainer) and self._quiet(trainer, step):
            self.whole.begin(trainer.update + 1 if update is None else update, trainer.remaining_at(step))

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
        shown = [type(one) for one in trainer.callbacks if one.reads_tensors]
        calls = ("on_update", "on_log", "on_warning")
        return all(getattr(kind, call) is getattr(Callback, call) for kind in shown for call in calls)
