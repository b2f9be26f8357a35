"""Running mean and variance, and what is derived from means and variances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.types import weighted_mean

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array


class RunningMoments:
    """Mean and population variance of all rows seen, merged batch by batch (Chan et al. 1979), in float64.

    δ = mean_b − mean_a,   mean = mean_a + δ·n_b/n,   M = M_a + M_b + δ²·n_a·n_b/n,   var = M/n
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0.0
        self.mean = np.zeros(shape, np.float64)
        self.var = np.ones(shape, np.float64)

    def merge(self, rows: Array) -> None:
        """Take in `rows`, `[B, *shape]`."""
        assert rows.shape[1:] == self.mean.shape, f"rows {rows.shape} do not fit moments of {self.mean.shape}"
        if len(rows) == 0:
            return
        rows = rows.astype(np.float64)
        size, mean, var = float(len(rows)), rows.mean(0), rows.var(0)
        total = self.count + size
        delta = mean - self.mean
        spread = self.var * self.count + var * size + delta**2 * (self.count * size / total)
        self.mean = self.mean + delta * (size / total)
        self.var = spread / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "var": self.var}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = float(state["count"])
        self.mean = np.asarray(state["mean"], np.float64).reshape(self.mean.shape)
        self.var = np.asarray(state["var"], np.float64).reshape(self.var.shape)


def standardize(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """(x − mean) / (std + 1e-8) with the population's std. A batch of one comes back as it is."""
    size = float(len(x)) if weight is None else weight.sum()
    mean = weighted_mean(x, weight)
    std = weighted_mean((x - mean) ** 2, weight).sqrt()
    scaled = (x - mean) / (std + 1e-8)
    if isinstance(size, float):
        return scaled if size > 1 else x
    return scaled.where(size > 1, x)


def explained_variance(value: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """1 − Var(target − value) / Var(target): 1 is a perfect critic, 0 a constant, below 0 is worse than that."""

    def variance(x: Tensor) -> Tensor:
        return weighted_mean((x - weighted_mean(x, weight)) ** 2, weight)

    return 1.0 - variance(target - value) / variance(target).clamp(min=1e-12)
