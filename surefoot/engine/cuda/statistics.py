"""Statistics of rows `[..., B]` whose bits do not depend on how many rows there are.

The readable twins are those of `math.statistics`. An agent alone is one row, a population has a row for each agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Metrics


def totals(x: Tensor) -> Tensor:
    """The sum of each row, `[...]`."""
    from surefoot.kernels.fused_sums import row_sums

    return row_sums(x)


def means(x: Tensor) -> Tensor:
    """The mean of each row, `[...]`."""
    return totals(x) / x.shape[-1]


def weighted_means(x: Tensor, weight: Tensor) -> Tensor:
    """Σwx / Σw of each row, `[...]`."""
    return totals(x * weight) / totals(weight).clamp(min=1.0)


def standardized(x: Tensor) -> Tensor:
    """(x − mean) / (std + 1e-8) with the row's own mean and population std. A row of one is returned unchanged."""
    if x.shape[-1] == 1:
        return x
    centred = x - means(x)[..., None]
    return centred / (means(centred**2).sqrt() + 1e-8)[..., None]


def explained_variances(value: Tensor, target: Tensor) -> Tensor:
    """1 − Var(target − value) / Var(target) of each row; 0 where the targets do not vary."""
    from surefoot.kernels.fused_summary import explained_variance

    return explained_variance(value, target)


def spread_of_kl(kl: Tensor) -> Metrics:
    """Mean, 95th percentile and largest of each row."""
    from surefoot.kernels.fused_summary import spread

    return dict(zip(("kl", "kl_p95", "kl_max"), spread(kl, 0.95), strict=True))
