"""A process's share of a batch that several processes collected together.

The samples of all processes are shuffled as one process would shuffle them; each process picks its own. The loss is a
mean over all samples. A process's own mean counts as `share` = R · (its weight) / (the weight of all R), so that the
average of share · mean over the processes is the mean over all samples, and so for gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from surefoot.engine.config import count_minibatches
from surefoot.engine.torch.natural import fisher_samples, spread
from surefoot.math.statistics import standardize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from surefoot.engine.config import Minibatches
    from surefoot.engine.group import Group
    from surefoot.types import Array, Batch, Metrics

MAXIMA = ("kl_max", "ratio_error", "ratio_max")  # metrics of which the largest counts; the others are averaged


class Passes(NamedTuple):
    """This process's samples of shuffled minibatches."""

    order: Array  # int64: the samples (or envs) of one minibatch after the other
    begins: Array  # [minibatches + 1] int64: where each begins
    moments: Array  # [minibatches, 3] float64: Σ w·A, Σ w·A², Σ w over the samples of all processes


class Shares:
    """What a learner knows of the other processes' samples."""

    def __init__(self, group: Group) -> None:
        self.group, self.several = group, group.size > 1
        self._last: tuple[Batch, float] | None = None

    def of(self, batch: Batch) -> float:
        """How much this process's mean over the batch counts. All processes must ask."""
        if not self.several:
            return 1.0
        if self._last is None or self._last[0] is not batch:
            own = weight_of(batch)
            total = float(self.group.sum_(torch.tensor([own], dtype=torch.float64, device="cpu")))
            self.note(batch, own * self.group.size / max(total, 1.0))
        assert self._last is not None
        return self._last[1]

    def note(self, batch: Batch, share: float) -> None:
        """The share of this batch is known already."""
        self._last = batch, share

    def forget(self) -> None:
        self._last = None  # it would keep a rollout alive

    def average_(self, numbers: Tensor) -> Tensor:
        """Replace the numbers by their average over all processes."""
        return self.group.sum_(numbers).div_(self.group.size) if self.several else numbers

    def overall_(self, own: Tensor, batch: Batch) -> Tensor:
        """The mean over the samples of all processes, from the mean over this process's own."""
        return self.average_(own.mul_(self.of(batch))) if self.several else own

    def mean(self, own: float, batch: Batch) -> float:
        """The mean over all samples, from this process's own."""
        if not self.several:
            return own
        share = self.of(batch)  # 0: there is no sample here, and `own` may be 0/0
        part = torch.tensor([own * share if share else 0.0], dtype=torch.float64, device="cpu")
        return float(self.average_(part))

    def metrics(self, own: dict[str, float]) -> dict[str, float]:
        """The averages of what all processes found; of `MAXIMA` the largest."""
        if not self.several:
            return own
        means = sorted(name for name in own if name not in MAXIMA)
        largest = sorted(name for name in own if name in MAXIMA)
        averaged = self.average_(torch.tensor([own[n] for n in means], dtype=torch.float64, device="cpu"))
        found = dict(zip(means, averaged.tolist(), strict=True))
        if largest:
            highest = self.group.max_(torch.tensor([own[n] for n in largest], dtype=torch.float64, device="cpu"))
            found |= dict(zip(largest, highest.tolist(), strict=True))
        return {name: found[name] for name in own}

    def sums(self, own: dict[str, float]) -> dict[str, float]:
        """The sums over all processes."""
        if not self.several:
            return own
        whole = self.group.sum_(torch.tensor(list(own.values()), dtype=torch.float64, device="cpu"))
        return dict(zip(own, whole.tolist(), strict=True))

    def concatenated(self, own: Tensor) -> Tensor:
        """The numbers of all processes, `[B]`, in the order of the processes."""
        if not self.several:
            return own
        sizes = torch.zeros(self.group.size, dtype=torch.int64, device="cpu")
        sizes[self.group.index] = len(own)
        ends = self.group.sum_(sizes).cumsum(0).tolist()
        whole = own.new_zeros(ends[-1])
        whole[ends[self.group.index] - len(own) : ends[self.group.index]] = own
        return self.group.sum_(whole)

    def explained_variance(self, batch: Batch) -> float:
        """1 − Var(target − value) / Var(target) over the samples of all processes, as in `math.statistics`."""
        weight = None if batch.weight is None else batch.weight.double()
        target, error = batch.value_target.double(), (batch.value_target - batch.value).double()
        ones = torch.ones_like(target) if weight is None else weight
        sums = torch.stack([x @ ones for x in (torch.ones_like(target), target, target**2, error, error**2)]).cpu()
        size, *found = self.group.sum_(sums).tolist()
        y, yy, d, dd = (x / max(size, 1.0) for x in found)
        spread = yy - y * y
        return 1.0 - max(dd - d * d, 0.0) / spread if spread > 1e-12 else 0.0

    def count(self, wanted: Minibatches, batch: Batch) -> int:
        """The number of minibatches per pass over all samples."""
        return count_minibatches(wanted, len(batch) * self.group.size, batch.units * self.group.size)

    def units(self, batch: Batch) -> int:
        """The number of units (samples, or envs with a memory) of all processes, with one time for all."""
        if batch.context is not None:
            return batch.units * self.group.size
        steps = torch.tensor([len(batch) // batch.num_envs], dtype=torch.int64, device="cpu")
        return int(self.group.max_(steps)) * batch.num_envs * self.group.size

    def own(self, order: Array, batch: Batch) -> tuple[Array, Array]:
        """(positions in `order`, units of this batch there) of those units of all processes that are this one's."""
        each = batch.num_envs if batch.context is None else batch.units
        time, env = np.divmod(order, each * self.group.size)
        env = env - each * self.group.index
        steps = 1 if batch.context is not None else len(batch) // each
        at = np.flatnonzero((env >= 0) & (env < each) & (time < steps))
        return at, (time * each + env)[at]

    def fisher_samples(self, batch: Batch, fraction: float) -> Batch:
        """This process's part of a fraction of all samples, spread evenly over envs and time."""
        if not self.several:
            return fisher_samples(batch, fraction)
        units = self.units(batch)
        count = max(1, round(fraction * units))
        if count == units:
            return batch
        envs = self.group.size * (batch.num_envs if batch.context is None else batch.units)
        _, index = self.own(spread(units // envs, envs, count), batch)
        return batch.take(torch.from_numpy(index).to(batch.obs.device))

    def minibatches(self, batch: Batch, order: Array, parts: int) -> Iterator[Batch]:
        """This process's samples of `parts` equal minibatches of all units in this order."""
        found = self.passes(batch, [order], parts)
        for number in range(parts):
            index = torch.from_numpy(found.order[found.begins[number] : found.begins[number + 1]])
            part = batch.take(index.to(batch.obs.device))
            self.note(part, weight_of(part) * self.group.size / max(float(found.moments[number, 2]), 1.0))
            yield part

    def normalized(self, part: Batch) -> Batch:
        """The batch with advantages standardised over the samples of all processes."""
        scaled = replace(part, advantage=standardize(part.advantage, part.weight, self.group.sum_))
        self.note(scaled, self.of(part))
        return scaled

    def passes(self, batch: Batch, orders: list[Array], parts: int) -> Passes:
        """Passes of `parts` equal minibatches over all units, each in one of these orders."""
        moments, found, numbers = unit_moments(batch), [], []
        for epoch, order in enumerate(orders):
            at, index = self.own(order, batch)
            found.append(index)
            numbers.append(epoch * parts + at // (len(order) // parts))
        own, number = np.concatenate(found), np.concatenate(numbers)
        count = len(orders) * parts
        sums = np.stack([np.bincount(number, column[own], count) for column in moments.T], axis=1)
        whole = self.group.sum_(torch.from_numpy(sums)).numpy()
        begins = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=count))])
        return Passes(own, begins, whole)


def weight_of(batch: Batch) -> float:
    """The number of valid samples."""
    return float(len(batch)) if batch.weight is None else float(batch.weight.sum())


def unit_moments(batch: Batch) -> Array:
    """`[units, 3]` float64: Σ w·A, Σ w·A² and Σ w of each sample or, with a memory, of each env."""
    advantage = batch.advantage.cpu().numpy().astype(np.float64)
    weight = np.ones_like(advantage) if batch.weight is None else batch.weight.cpu().numpy().astype(np.float64)
    columns = np.stack([weight * advantage, weight * advantage**2, weight], axis=1)
    return columns.reshape(-1, batch.units, 3).sum(0) if batch.context is not None and len(columns) else columns


def averaged(history: list[Metrics]) -> Metrics:
    """The mean of each metric over the minibatches; one without samples here adds nothing to it."""
    if len(history) == 1:
        return history[0]
    names = list(dict.fromkeys(name for entry in history for name in entry))
    columns = {name: torch.stack([entry[name] for entry in history if name in entry]) for name in names}
    return {
        name: column.mean(0) if len(column) == len(history) else column.sum(0) / len(history)
        for name, column in columns.items()
    }
