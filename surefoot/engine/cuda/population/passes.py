"""The gradient steps of all agents of a population together: `FusedPasses` with an axis of agents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.engine.cuda.fused_passes import Half
from surefoot.engine.cuda.fused_steps import COLUMNS, Places, Steps
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
        told = [self.table, self.numbers, *([] if self.limit is None else [self.limit])]
        self._told = [Told(place, MOST_PAGES + 1) for place in told]
        self._order = zeros(len(like.batch), dtype=torch.int64)
        self._sums, self._error = zeros(len(like.names)), zeros()
        self._total, self._squares = zeros(learner.flat.actor_size), zeros()
        self._count = 0
        places = Places(
            learner.flat.vector,
            self.numbers,
            learner.first,
            learner.second,
            self.table,
            self.index,
            self.limit,
            self._sums,
            self._error,
            self._total,
            self._squares,
        )
        self._steps = Steps(like, self.batch, self._order, places)
        self._half = Half(like, learner.flat.vector, self.batch, self.numbers) if like.halves else None

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
        self._steps.once(opening=self._count == 0)
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
