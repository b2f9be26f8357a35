"""The gradient steps of a pass as kernels, for one agent or for several: every tensor stays in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.fused_passes import FusedPasses
    from surefoot.types import Batch

COLUMNS = ("obs", "action", "log_prob", "dist_params", "advantage", "value_target", "value")  # of a batch


@dataclass(frozen=True)
class Places:
    """What the steps read and change. Of several agents, each has a row: `[agents, ...]`."""

    theta: Tensor
    numbers: Tensor  # of the loss
    first: Tensor  # the optimizer's moments
    second: Tensor
    table: Tensor  # its rates, by step
    index: Tensor  # the next step's place in the table
    limit: Tensor | None  # the largest norm of a gradient
    sums: Tensor  # of the metrics
    error: Tensor  # of the first ratios
    total: Tensor  # of the actor's gradients, for a `Look`
    squares: Tensor


class Steps:
    """A pass over batches `[B]`, or `[agents·B]` with the samples of one agent after those of another."""

    def __init__(self, form: FusedPasses, batch: Batch, order: Tensor, places: Places) -> None:
        """`form`: passes of one agent, whose nets, loss and optimizer all agents have. `order`: of the samples."""
        from surefoot.kernels.fused_descent import Descent, Optimizer, Report
        from surefoot.kernels.fused_update import Gradients, Rows

        self.parts, self._index, own = form.parts, places.index, form.optimizer.optimizer
        obs, action, log_prob, params, advantage, target, value = (getattr(batch, name) for name in COLUMNS)
        shuffled = order if self.parts > 1 else None
        rows = Rows(obs, action, log_prob, params, advantage, target, value, shuffled)
        self._gradients = Gradients(places.theta, form.actor, form.critic, form.terms, rows, self.parts, places.numbers)
        optimizer = Optimizer(
            places.first,
            places.second,
            places.table,
            places.index,
            places.limit,
            begin=own.ranges[0][0],
            split=own.ranges[0][1],
            slices=len(own.ranges),
            adam=own.kind != "rmsprop",
            eps=own.eps,
        )
        report = Report(places.sums, places.error, places.total, places.squares)
        self._descent = Descent(self._gradients, optimizer, report)

    def once(self, *, opening: bool) -> None:
        """A step on each minibatch. `opening`: the update begins, so ratios must be 1 and gradients may be kept."""
        self._gradients.prepare()
        for part in range(self.parts):
            self._gradients.compute(part)
            self._descent.step(part, opening=opening)
        self._index.add_(self.parts)

    def gradient(self) -> Tensor:
        """The gradient of the first minibatch."""
        self._gradients.prepare()
        self._gradients.compute(0)
        self._descent.add_up()
        return self._descent.total[..., : self._gradients.parameters].clone()
