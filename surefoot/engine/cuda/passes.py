"""Passes whose minibatch step works on tensors that stay where they are, so that it can be recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.cuda.copying import clear_all, copy_all
from surefoot.engine.cuda.optimizer import PlannedOptimizer
from surefoot.engine.cuda.told import Told
from surefoot.engine.losses import Loss, present
from surefoot.engine.torch.instruments import max_ratio_error, normalized
from surefoot.engine.torch.permutation import permutation
from surefoot.types import Batch, Context

if TYPE_CHECKING:
    from surefoot.engine.cuda.recorder import Recorder, Work
    from surefoot.engine.torch.learner import Learner
    from surefoot.engine.torch.optimizers import FlatOptimizer
    from surefoot.types import Metrics

# The loss of a minibatch and its metrics; True: the first step of an update, whose ratios must be 1.
Objective: TypeAlias = Callable[[Batch, bool], "tuple[Tensor, Metrics]"]
RATIO_ERROR, GRAD_NORM = "ratio_error", "grad_norm"
WHAT = "the gradient step"  # for messages
WORD = 8  # bytes
NUMBERS = ("kl_coef", "value_coef", "value_clip", "entropy_coef")


def structure(loss: Loss) -> tuple[object, ...]:
    """Everything about a loss except its numbers, which may change from update to update."""
    terms = tuple(None if (x := getattr(loss, name)) is None else present(x) for name in NUMBERS)
    return loss.surrogate, len(loss.parameters), terms, loss.value_loss, loss.metrics


class FixedLoss:
    """A `Loss` whose numbers are in a tensor, where a recorded step finds the current ones."""

    def __init__(self, loss: Loss, device: torch.device) -> None:
        self.numbers = torch.tensor(numbers_of(loss), dtype=torch.float32, device=device)
        self._told = Told(self.numbers)
        held = iter(cast("tuple[float, ...]", self.numbers.unbind()))
        parameters = tuple(next(held) for _ in loss.parameters)
        terms = {name: next(held) for name in NUMBERS if given(loss, name)}
        self.loss = replace(loss, parameters=parameters, **terms)  # type: ignore[arg-type] # of numbers, by name

    def load(self, loss: Loss) -> None:
        self._told.tell(np.array(numbers_of(loss), np.float32))


def given(loss: Loss, name: str) -> bool:
    """Whether the loss has this term."""
    number = getattr(loss, name)
    return number is not None and present(number)


def numbers_of(loss: Loss) -> list[float]:
    """The numbers of a loss, in the order in which `FixedLoss` holds them."""
    return [*loss.parameters, *(getattr(loss, name) for name in NUMBERS if given(loss, name))]


class FixedPasses:
    """The gradient steps of `EagerPasses`, with every tensor in its place and nothing read on the host."""

    def __init__(
        self,
        learner: Learner,
        objective: Objective,
        batch: Batch,
        parts: int,
        number: int,
        recorder: Recorder,
        *,
        optimizer: FlatOptimizer,
        normalize: bool,
    ) -> None:
        """`number`: the most passes of one update. `optimizer`: the one that takes the steps."""
        self.learner, self.objective, self.parts, self.normalize = learner, objective, parts, normalize
        self.batch, self.recorder, device = _copied(batch), recorder, batch.obs.device
        self.optimizer = PlannedOptimizer(optimizer, parts * number)
        self.first: Metrics = {}

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.limit = None if learner.max_grad_norm is None else zeros()
        self._order = zeros(batch.units, dtype=torch.int64)
        self._part = zeros(1, dtype=torch.int64)  # the minibatch of the pass that comes next
        self._names: list[str] = []  # the metrics' names, known after the first step
        self._sums = zeros(0)  # sums of the metrics over the steps
        self._error = zeros()
        self._total, self._squares = (
            zeros(learner.flat.actor_size),
            zeros(),
        )  # sums of gradients for a `Look`
        self._count = 0  # steps of this update
        self._works: dict[bool, Work] = {}

    def begin(self, batch: Batch) -> None:
        """A new update, on a batch of the same shape."""
        self.load(batch)
        if not self.recorder.busy:  # a recorded iteration is told the rates before each of its starts
            self.plan()
        self._count, self.first = 0, {}
        if not self._works:
            self.optimizer.index.zero_()
            self._works = {opening: self._recorded(opening) for opening in (True, False)}
        clear_all((self.optimizer.index, self._sums, self._part, self._error, self._total, self._squares))

    def plan(self) -> None:
        """Tell the device the rates of the coming steps and the largest norm of a gradient."""
        self.optimizer.plan()
        if self.limit is not None:
            assert self.learner.max_grad_norm is not None
            self.limit.fill_(self.learner.max_grad_norm)

    def load(self, batch: Batch) -> None:
        copy_all(_tensors(self.batch), _tensors(batch))

    def _recorded(self, opening: bool) -> Work:
        learner, work = self.learner, lambda: self._step(opening)
        if learner.observer is not None:
            return work
        changed = [learner.flat.vector, learner.flat.gradient, *self.optimizer.changed, *learner.policy.buffers()]
        return self.recorder.record(WHAT, work, self._order.device, changed)

    def once(self) -> None:
        learner = self.learner
        learner.used.add(learner.engine)
        self._shuffle()
        look = None if learner.look is None or learner.look.count else learner.look
        if learner.observer is not None:
            for _ in range(self.parts):
                self._step(self._count == 0 or look is not None)
                self._count += 1
        else:
            self._all_steps(look is not None)
        self.optimizer.optimizer.steps += self.parts
        if look is not None:
            look.total, look.squares, look.count = self._total.clone(), self._squares.clone(), look.minibatches
        self.first = {RATIO_ERROR: self._error}

    @property
    def history(self) -> list[Metrics]:
        """The means over all steps so far."""
        return [dict(zip(self._names, (self._sums / self._count).unbind(), strict=True))] if self._count else []

    def _shuffle(self) -> None:
        if self.parts > 1:
            self._order.copy_(permutation(len(self._order), self.learner.generator))

    def _all_steps(self, measured: bool) -> None:
        """The steps of one pass; `measured`: all of them belong to a `Look`."""
        for _ in range(self.parts):
            self._works[self._count == 0 or measured]()
            self._count += 1

    def _minibatch(self) -> Batch:
        batch = self.batch
        if self.parts > 1:
            batch = take(batch, self._order.view(self.parts, -1).index_select(0, self._part)[0])
        return normalized(batch) if self.normalize else batch

    def _step(self, opening: bool) -> None:
        """One gradient step; with `opening`, one that an update begins with."""
        learner = self.learner
        flat = learner.flat
        total, metrics = self.objective(self._minibatch(), opening)
        flat.differentiate(total)
        gradient = flat.gradient[learner.first_trained :]
        if learner.observer is not None:
            learner.observer("minibatch", gradient)
        norm = torch.linalg.vector_norm(gradient)
        if opening:
            own = flat.gradient[: flat.actor_size]
            self._total.add_(own)
            self._squares.add_(torch.dot(own, own))
            if RATIO_ERROR in metrics:
                error = metrics.pop(RATIO_ERROR)
                self._error.copy_(torch.where(self.optimizer.index[0] == 0, error, self._error))
        if self.limit is not None:
            gradient.mul_((self.limit / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.step()
        self._add({**metrics, GRAD_NORM: norm})
        self._part.add_(1).remainder_(self.parts)

    def _add(self, metrics: Metrics) -> None:
        if not self._names:
            self._names, self._sums = list(metrics), self._error.new_zeros(len(metrics))
        self._sums.add_(torch.stack(list(metrics.values())))


def take(batch: Batch, index: Tensor) -> Batch:
    """`batch.take`, with bytes gathered as words of eight: a GPU takes as long for a byte as for a word."""
    obs = batch.obs
    rows = obs.flatten(1) if obs.dim() > 2 and obs.dtype == torch.uint8 and batch.context is None else None
    if rows is None or rows.shape[1] % WORD:
        return batch.take(index)
    part = replace(batch, obs=rows.view(torch.int64)).take(index)
    return replace(part, obs=part.obs.view(torch.uint8).view(-1, *obs.shape[1:]))


def joint(learner: Learner, loss: Loss) -> Objective:
    """The loss of actor and critic together."""

    def objective(part: Batch, opening: bool) -> tuple[Tensor, Metrics]:
        outputs = learner.policy.evaluate(part.obs, part.action, part.context)
        total, metrics = loss(outputs, part)
        return total, {**metrics, RATIO_ERROR: max_ratio_error(outputs, part)} if opening else metrics

    return objective


def critic(learner: Learner, loss: Loss) -> Objective:
    """The critic's loss alone."""

    def objective(part: Batch, opening: bool) -> tuple[Tensor, Metrics]:
        total = loss.of_value(learner.policy.value(part.obs, part.context), part)
        return total, {"value_loss": total.detach()}

    return objective


def shape_of(batch: Batch) -> tuple[object, ...]:
    """What must be equal for a batch to be loaded into another's place."""
    return (batch.weight is None, batch.units, *((tensor.shape, tensor.dtype) for tensor in _tensors(batch)))


def _tensors(batch: Batch) -> list[Tensor]:
    found = [value for field in fields(batch) if isinstance(value := getattr(batch, field.name), Tensor)]
    return found if batch.context is None else [*found, batch.context.start, batch.context.memory]


def _copied(batch: Batch) -> Batch:
    """The batch in tensors of its own."""
    context, weight = batch.context, batch.weight
    return replace(
        batch,
        obs=batch.obs.clone(),
        action=batch.action.clone(),
        log_prob=batch.log_prob.clone(),
        dist_params=batch.dist_params.clone(),
        advantage=batch.advantage.clone(),
        value_target=batch.value_target.clone(),
        value=batch.value.clone(),
        weight=None if weight is None else weight.clone(),
        context=None if context is None else Context(context.start.clone(), context.memory.clone()),
    )
