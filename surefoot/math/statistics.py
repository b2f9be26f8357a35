"""Statistics of a batch of samples, with weights if some are not transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.types import weighted_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def standardize(x: Tensor, weight: Tensor | None = None, sum_: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """(x − mean) / (std + 1e-8) with the population's std. A batch of one is returned unchanged.

    `sum_`: replaces numbers by their sums over several processes, whose samples then count as one batch.
    """
    if sum_ is not None:
        return _standardize_over_all(x, weight, sum_)
    size = float(len(x)) if weight is None else weight.sum()
    mean = weighted_mean(x, weight)
    std = weighted_mean((x - mean) ** 2, weight).sqrt()
    scaled = (x - mean) / (std + 1e-8)
    if isinstance(size, float):
        return scaled if size > 1 else x
    return scaled.where(size > 1, x)


def _standardize_over_all(x: Tensor, weight: Tensor | None, sum_: Callable[[Tensor], Tensor]) -> Tensor:
    ones = x.new_ones(x.shape) if weight is None else weight
    sums = x.new_empty(2)
    sums[0], sums[1] = ones.sum(), (x * ones).sum()
    size, total = sum_(sums)
    mean = total / size.clamp(min=1.0)
    (spread,) = sum_(((x - mean) ** 2 * ones).sum().reshape(1))
    std = (spread / size.clamp(min=1.0)).sqrt()
    scaled: Tensor = ((x - mean) / (std + 1e-8)).where(size > 1, x)
    return scaled


def explained_variance(value: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """1 − Var(target − value) / Var(target): 1 is a perfect critic, 0 a constant, below 0 is worse than a constant.

    0 if the targets do not vary, because there is nothing to explain.
    """

    def variance(x: Tensor) -> Tensor:
        return weighted_mean((x - weighted_mean(x, weight)) ** 2, weight)

    spread = variance(target)
    return (1.0 - variance(target - value) / spread.clamp(min=1e-12)).where(spread > 1e-12, 0.0)
