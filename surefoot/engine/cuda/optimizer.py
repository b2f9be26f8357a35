"""Optimizer steps that can be recorded: all numbers that depend on the step's index are in a table on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.cuda.told import Told

if TYPE_CHECKING:
    from surefoot.engine.torch.optimizers import FlatOptimizer
    from surefoot.types import Array


TRIED = 2  # steps that a recorder tries before it records one


class PlannedOptimizer:
    """The next steps of a `FlatOptimizer`: the same formulas on the same state, with rates from a table.

    A row of the table has Adam's 1/√(1−β₂ᵗ) and, for each slice, −α/(1−β₁ᵗ); for RMSprop 1 and −α.
    """

    def __init__(self, optimizer: FlatOptimizer, capacity: int) -> None:
        """`capacity`: the most steps of one plan."""
        self.optimizer, device = optimizer, optimizer.first.device
        capacity = max(capacity, TRIED)
        self.table = torch.zeros(capacity, 1 + len(optimizer.slices), dtype=torch.float32, device=device)
        self._told = Told(self.table)
        self.index = torch.zeros(1, dtype=torch.int64, device=device)  # the next step's place in the plan

    def plan(self) -> None:
        """Fill the table for the coming steps, from the optimizer's own count and rates. `index` is to be 0 then."""
        self._told.tell(planned(self.optimizer, len(self.table)))

    @property
    def changed(self) -> list[Tensor]:
        """What a step changes, except the parameters."""
        return [self.optimizer.first, self.optimizer.second, self.index]

    def step(self) -> None:
        """One step. The optimizer's own count is the caller's business: the host cannot count in a recording."""
        correction, *rates = self.table.index_select(0, self.index)[0].unbind()
        eps, adam = self.optimizer.eps, self.optimizer.kind != "rmsprop"
        for part, rate in zip(self.optimizer.slices, rates, strict=True):
            gradient = part.gradient
            if adam:
                part.first.lerp_(gradient, 0.1)
                part.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                denominator = part.second.sqrt().mul_(correction).add_(eps)
                part.parameters.addcmul_(part.first.div(denominator), rate)
            else:
                part.second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                part.parameters.addcmul_(gradient / part.second.sqrt().add_(eps), rate)
        self.index.add_(1)


def planned(optimizer: FlatOptimizer, steps: int) -> Array:
    """A row for each of the coming steps, `[steps, 1 + slices]`: Adam's correction of √v, and −α of each slice."""
    rows = np.empty((steps, 1 + len(optimizer.slices)), np.float32)
    rows[:, 0], rows[:, 1:] = 1.0, [-part.base_rate * optimizer.rate_factor for part in optimizer.slices]
    if optimizer.kind != "rmsprop":
        step = np.arange(optimizer.steps + 1, optimizer.steps + 1 + len(rows), dtype=np.float64)
        rows[:, 0] /= np.sqrt(1.0 - 0.999**step)
        rows[:, 1:] /= (1.0 - 0.9**step)[:, None]
    return rows
