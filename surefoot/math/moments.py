"""Running mean and variance, and the running returns used to normalise rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array

    Combine: TypeAlias = Callable[[float, Array, Array], tuple[float, Array, Array]]


def moments(rows: Array) -> tuple[Array, Array]:
    """(mean, population variance) over the first axis, in float64."""
    rows = rows.astype(np.float64)
    return rows.mean(0), rows.var(0)


def running_returns(reward: Array, done: Array, valid: Array, gamma: float, running: Array) -> tuple[Array, Array]:
    """(G_t = γ·G_{t−1} + r_t of every step, G after the last). G restarts after an end and skips invalid steps.

    All `[T, N]`; `running` `[N]` is G before the first.
    """
    seen = np.zeros_like(reward)
    for t in range(len(reward)):
        running = np.where(valid[t], gamma * running + reward[t], running)
        seen[t] = running
        running = np.where(done[t], 0.0, running)
    return seen, running


def combined(size: float, mean: Array, var: Array, sum_: Callable[[Tensor], Tensor]) -> tuple[float, Array, Array]:
    """Number, mean and variance of the rows of all processes, from those of this one's rows.

    M = Σ M_r + n_r·(mean_r − mean)²; `sum_` replaces numbers by their sums over the processes.
    """
    import torch

    first = sum_(torch.from_numpy(np.concatenate([[size], (size * mean).ravel()])))
    total = float(first[0])
    whole = first[1:].numpy().reshape(mean.shape) / max(total, 1.0)
    spread = sum_(torch.from_numpy(np.ravel(size * (var + (mean - whole) ** 2))))
    return total, whole, spread.numpy().reshape(mean.shape) / max(total, 1.0)


class MomentsState(TypedDict):
    count: float
    mean: Array
    var: Array


class RunningMoments:
    """Mean and population variance of all rows seen, merged batch by batch (Chan et al. 1979), in float64.

    δ = mean_b − mean_a,   mean = mean_a + δ·n_b/n,   M = M_a + M_b + δ²·n_a·n_b/n,   var = M/n
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)

    def merge(
        self, rows: Array, moments: Callable[[Array], tuple[Array, Array]] = moments, combine: Combine | None = None
    ) -> None:
        """Add `rows`, `[B, *shape]`. `moments`: the function above, or its compiled version (`kernels.scan`).

        `combine`: the rows of all processes are added, from the moments of this one's.
        """
        assert rows.shape[1:] == self.mean.shape, f"rows {rows.shape} do not fit moments of {self.mean.shape}"
        found = moments(rows) if len(rows) else (np.zeros_like(self.mean), np.zeros_like(self.mean))
        self.add(*(float(len(rows)), *found) if combine is None else combine(float(len(rows)), *found))

    def add(self, size: float, mean: Array, var: Array) -> None:
        """Add `size` rows with this mean and variance."""
        if not size:
            return
        total = self.count + size
        delta = mean - self.mean
        spread = self.var * self.count + var * size + delta**2 * (self.count * size / total)
        self.mean = self.mean + delta * (size / total)
        self.var = spread / total
        self.count = total

    def state_dict(self) -> MomentsState:
        # A single number, which is an array of no dimension after loading, is saved as a number again.
        return {"count": self.count, "mean": self.mean[()], "var": self.var[()]}

    def load_state_dict(self, state: MomentsState) -> None:
        self.count = float(state["count"])
        self.mean = np.asarray(state["mean"], np.float64).reshape(self.mean.shape)
        self.var = np.asarray(state["var"], np.float64).reshape(self.var.shape)
