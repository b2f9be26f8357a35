"""Passes of gradient steps over the minibatches of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from surefoot.engine.torch.instruments import max_ratio_error

if TYPE_CHECKING:
    from surefoot.engine.losses import LossFunction
    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch, Metrics


class Passes(Protocol):
    """Gradient steps on shuffled minibatches, pass after pass, and what they report."""

    first: Metrics  # what only the first step can tell

    @property
    def history(self) -> list[Metrics]:
        """From every step, or their means."""
        ...

    def load(self, batch: Batch) -> None:
        """Continue with other advantages and targets of the same samples."""
        ...

    def once(self) -> None:
        """One pass."""
        ...


class EagerPasses:
    """Passes for any loss, in any number of processes."""

    def __init__(self, learner: Learner, loss: LossFunction, batch: Batch, parts: int, *, normalize: bool) -> None:
        """`normalize`: standardise the advantages of each minibatch."""
        self.learner, self.loss, self.parts, self.normalize = learner, loss, parts, normalize
        self.batch = batch
        self.history: list[Metrics] = []
        self.first: Metrics = {}

    def load(self, batch: Batch) -> None:
        self.batch = batch

    def once(self) -> None:
        learner, policy = self.learner, self.learner.policy
        for part in learner.minibatches(self.batch, self.parts):
            if self.normalize:
                part = learner.normalized(part)
            outputs = policy.evaluate(part.obs, part.action, part.context) if len(part) else None
            if not self.history:
                self.first["ratio_error"] = max_ratio_error(outputs, part)
            self.history.append(learner.descend_on(self.loss, outputs, part))
