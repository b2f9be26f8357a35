"""The running statistics of `moments.py` in tensors: nothing waits for their device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from surefoot.math.moments import RunningMoments

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.math.moments import MomentsState

    Moments: TypeAlias = tuple[Tensor, Tensor, Tensor]  # count, mean, var


def running_returns(
    reward: Tensor, done: Tensor, valid: Tensor, gamma: float, running: Tensor
) -> tuple[Tensor, Tensor]:
    """`moments.running_returns` in tensors."""
    seen = torch.empty_like(reward)
    for t in range(len(reward)):
        running = torch.where(valid[t], gamma * running + reward[t], running)
        seen[t] = running
        running = running.masked_fill(done[t], 0.0)
    return seen, running


def merged(before: Moments, rows: Tensor, valid: Tensor, sum_: Callable[[Tensor], Tensor] | None = None) -> Moments:
    """(count, mean, var) with the `valid` `[B]` ones of more rows `[B, *shape]`; `sum_`: those of all processes."""
    count, mean, var = before
    sum_ = sum_ or (lambda numbers: numbers)
    weight = valid.to(rows.dtype).reshape(-1, *(1,) * (rows.dim() - 1))
    size = sum_(weight.sum())
    own_mean = sum_((rows * weight).sum(0)) / size.clamp(min=1.0)
    own_var = sum_(((rows - own_mean) ** 2 * weight).sum(0)) / size.clamp(min=1.0)
    total = (count + size).clamp(min=1.0)
    delta = own_mean - mean
    spread = var * count + own_var * size + delta**2 * (count * size / total)
    return count + size, mean + delta * (size / total), torch.where(size > 0, spread / total, var)


class DeviceMoments:
    """`RunningMoments` in tensors. Its state has the same form."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        self.count = torch.zeros((), dtype=dtype, device=device)
        self.mean = torch.zeros(shape, dtype=dtype, device=device)
        self.var = torch.ones(shape, dtype=dtype, device=device)

    def merge(self, rows: Tensor, valid: Tensor, sum_: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add the `valid` `[B]` ones of rows `[B, *shape]`; `sum_`: those of all processes."""
        for own, new in zip(self.tensors, merged((self.count, self.mean, self.var), rows, valid, sum_), strict=True):
            own.copy_(new)

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that `merge` changes, in place."""
        return [self.count, self.mean, self.var]

    def state_dict(self) -> MomentsState:
        return self._read().state_dict()

    def _read(self) -> RunningMoments:
        """The same on the host."""
        read = RunningMoments(tuple(self.mean.shape))
        mean, var = (x.to("cpu", torch.float64).numpy() for x in (self.mean, self.var))
        read.load_state_dict({"count": float(self.count), "mean": mean, "var": var})
        return read

    def load_state_dict(self, state: MomentsState) -> None:
        read = RunningMoments(tuple(self.mean.shape))
        read.load_state_dict(state)
        self.count.fill_(read.count)
        for own, x in ((self.mean, read.mean), (self.var, read.var)):
            own.copy_(torch.from_numpy(np.asarray(x)))
