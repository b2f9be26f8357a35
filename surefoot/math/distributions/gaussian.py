"""The diagonal Gaussian, free or squashed into bounds."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LOG_2PI = math.log(2.0 * math.pi)
HERMITE_NODES = 32


class DiagGaussian:
    """π(a|s) = N(mean, diag(exp(2·log_std))) over D dimensions; densities and entropies sum over them."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        assert mean.shape == log_std.shape, f"mean {tuple(mean.shape)}, log_std {tuple(log_std.shape)}"
        self.mean, self.log_std = mean, log_std  # [..., D]

    def with_params(self, params: Tensor) -> DiagGaussian:
        """A distribution of the same kind from stored parameters."""
        return self.from_params(params)

    @classmethod
    def from_params(cls, params: Tensor) -> Self:
        """params = mean and log_std side by side, `[..., 2·D]`."""
        mean, log_std = params.chunk(2, dim=-1)
        return cls(mean, log_std)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal noise, one number per action dimension (half of the parameters)."""
        size = (*shape[:-1], shape[-1] // 2)
        return torch.randn(size, generator=generator, dtype=torch.float32, device=generator.device)

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, dim=-1)
        return mean + log_std.exp() * noise

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Σ_d −½((a − mean)/σ)² − log σ − ½ log 2π."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return -(0.5 * scaled * scaled + self.log_std + 0.5 * LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Σ_d log σ + ½(1 + log 2π)."""
        return (self.log_std + 0.5 * (1.0 + LOG_2PI)).sum(-1)

    def kl_to(self, other: DiagGaussian) -> Tensor:
        """KL(self‖other) = Σ_d log σ_o/σ_s + (σ_s² + (mean_s − mean_o)²) / (2σ_o²) − ½."""
        ratio = torch.exp(2.0 * (self.log_std - other.log_std))
        distance = ((self.mean - other.mean) * torch.exp(-other.log_std)) ** 2
        return (other.log_std - self.log_std + 0.5 * (ratio + distance - 1.0)).sum(-1)

    def dimensions(self) -> tuple[Tensor, Tensor]:
        return self.log_std + 0.5 * (1.0 + LOG_2PI), self.log_std.exp()


class TanhGaussian:
    """a = centre + half·tanh(u) with u ~ N(mean, diag σ²), for bounds on all sides.

    Actions are stored as u, so that nothing is lost at the bounds; log_prob and entropy are those of a, the env's own
    coordinates. `log_half` is Σ_d log half_d.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, log_half: float) -> None:
        self.gaussian, self.log_half = DiagGaussian(mean, log_std), log_half

    def with_params(self, params: Tensor) -> TanhGaussian:
        """A distribution of the same kind from stored parameters."""
        return self.from_params(params, self.log_half)

    @classmethod
    def from_params(cls, params: Tensor, log_half: float) -> Self:
        """params = mean and log_std side by side, `[..., 2·D]`."""
        mean, log_std = params.chunk(2, dim=-1)
        return cls(mean, log_std, log_half)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Standard normal noise, one number per action dimension (half of the parameters)."""
        return DiagGaussian.noise(shape, generator)

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        return DiagGaussian.draw(params, noise)

    def mode(self) -> Tensor:
        """The mean of u, which is the median of a: the density of a may peak at the bounds."""
        return self.gaussian.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """log N(u) − Σ_d log(half·(1 − tanh² u))."""
        return self.gaussian.log_prob(action) - _log_tanh_slope(action).sum(-1) - self.log_half

    def entropy(self) -> Tensor:
        """H(u) + Σ_d E[log(half·(1 − tanh² u))]; the expectation has no closed form: Gauss–Hermite quadrature.

        Error per dimension: below 1e-6 for σ ≤ 1, 2e-4 at σ = 2, 0.03 at σ = 5 (where a sits at its bounds).
        """
        nodes, weights = _hermite(self.gaussian.mean.dtype, self.gaussian.mean.device)
        at = self.gaussian.mean.unsqueeze(-1) + self.gaussian.log_std.exp().unsqueeze(-1) * nodes  # [..., D, nodes]
        return self.gaussian.entropy() + (_log_tanh_slope(at) @ weights).sum(-1) + self.log_half

    def kl_to(self, other: TanhGaussian) -> Tensor:
        """KL(self‖other): that of the Gaussians, because an invertible map of the action does not change it."""
        return self.gaussian.kl_to(other.gaussian)

    def dimensions(self) -> tuple[Tensor, Tensor]:
        return self.gaussian.dimensions()


def _log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 − tanh² u) = 2·(log 2 − u − softplus(−2u)), without 1 − 1 at large |u|."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))


@lru_cache(maxsize=8)
def _hermite(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights with E[f(z)] ≈ Σ w f(z_i) for a standard normal z. Cached: a copy to a GPU waits for it."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
    kept = (torch.from_numpy(values).to(device, dtype) for values in (nodes, weights / weights.sum()))
    return next(kept), next(kept)
