"""The gradient steps of all agents of a population together: `FusedPasses` with an axis of agents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.engine.cuda.fused_passes import COLUMNS, Half
from surefoot.engine.cuda.passes import RATIO_ERROR
from surefoot.engine.cuda.population.flight import MOST_PAGES
from surefoot.engine.cuda.told import Told
from surefoot.engine.torch.permutation import permutations

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.fused_passes import FusedPasses
    from surefoot.engine.cuda.population.learner import PopulationLearner
    from surefoot.types import Array, Batch, Metrics


class PopulationPasses:
    """Passes over the batches `[agents·B]` of all agents, with every tensor in its place."""

    def __init__(self, learner: PopulationLearner, like: FusedPasses) -> None:
        """`like`: the passes of the first agent alone, whose form all share."""
        self.learner, self.like, self.parts, agents = learner, like, like.parts, learner.agents
        self.batch, device = several_of(like.batch, agents), like.batch.obs.device
        self.history: list[Metrics] = []
        self.first: Metrics = {}

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((agents, *size), dtype=dtype, device=device)

        self.limit = None if like.limit is None else zeros()
        self.table, self.index = zeros(*like.optimizer.table.shape), zeros(dtype=torch.int64)
        self.numbers = zeros(len(like.loss.numbers))
        places = [self.table, self.numbers, *([] if self.limit is None else [self.limit])]
        self._told = [Told(place, MOST_PAGES + 1) for place in places]
        self._order = zeros(len(like.batch), dtype=torch.int64)
        self._sums, self._error = zeros(len(like.names)), zeros()
        self._total, self._squares = zeros(learner.flat.actor_size), zeros()
        self._count = 0
        self._build()
        self._half = Half(like, learner.flat.vector, self.batch, self.numbers) if like.halves else None

    def _build(self) -> None:
        from surefoot.kernels.fused_descent import Descent, Optimizer, Report
        from surefoot.kernels.fused_update import Gradients, Rows

        batch, like, learner, own = self.batch, self.like, self.learner, self.like.optimizer.optimizer
        rows = Rows(
            batch.obs,
            batch.action,
            batch.log_prob,
            batch.dist_params,
            batch.advantage,
            batch.value_target,
            batch.value,
            self._order if self.parts > 1 else None,
        )
        self._gradients = Gradients(
            learner.flat.vector, like.actor, like.critic, like.terms, rows, self.parts, self.numbers
        )
        optimizer = Optimizer(
            learner.first,
            learner.second,
            self.table,
            self.index,
            self.limit,
            begin=own.ranges[0][0],
            split=own.ranges[0][1],
            slices=len(own.ranges),
            adam=own.kind != "rmsprop",
            eps=own.eps,
        )
        report = Report(self._sums, self._error, self._total, self._squares)
        self._descent = Descent(self._gradients, optimizer, report)

    def tell(self, table: Array, numbers: Array, limit: Array) -> None:
        """The rates of the coming steps, the numbers of the loss and the largest norm, a row for each agent."""
        told = (table, numbers, *([] if self.limit is None else [limit]))
        for place, new in zip(self._told, told, strict=True):
            place.tell(new.astype(np.float32).reshape(place.place.shape))

    def begin(self, batch: Batch) -> None:
        """A new update, on batches of the same shape."""
        self.load(batch)
        self._count, self.history, self.first = 0, [], {}
        for tensor in (self.index, self._sums, self._error, self._total, self._squares):
            tensor.zero_()

    def load(self, batch: Batch) -> None:
        for name in COLUMNS:
            getattr(self.batch, name).copy_(getattr(batch, name))

    def half_gradients(self) -> Tensor | None:
        """The actors' gradients over one half of each batch; None if there is no such half."""
        return None if self._half is None else self._half.gradient()[:, : self.learner.flat.actor_size]

    def once(self) -> None:
        look = self.learner.looking if self._count == 0 else None
        if self.parts > 1:
            self._order.copy_(permutations(self._order.shape[1], self.learner.generators))
        self._gradients.prepare()
        for part in range(self.parts):
            self._gradients.compute(part)
            self._descent.step(part, opening=self._count == 0)
        self.index.add_(self.parts)
        self._count += self.parts
        if look is not None:
            look.total, look.squares = self._total.clone(), self._squares.clone()
        self.history = [dict(zip(self.like.names, (self._sums / self._count).unbind(-1), strict=True))]
        self.first = {RATIO_ERROR: self._error}

    @property
    def steps(self) -> int:
        """How many steps every agent's optimizer has taken in this update so far."""
        return self._count


def several_of(batch: Batch, agents: int) -> Batch:
    """A place for the batches of several agents."""
    columns: dict[str, Any] = {name: torch.cat([getattr(batch, name)] * agents) for name in COLUMNS}
    return replace(batch, **columns)
