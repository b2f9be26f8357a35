"""The Beta distribution between bounds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.math.constants import BETA_EDGE, GAMMA_CANDIDATES


class Beta:
    """x_d ~ Beta(α_d, β_d) on (0, 1), a = low + (high − low)·x; α, β = 1 + softplus(raw) ≥ 1, so it has one peak.

    Actions are kept as x; log_prob and entropy are those of a, the env's own coordinates. `log_width` is
    Σ_d log(high_d − low_d). The formulas run in float64: log Γ of a sharp peak cancels away all of a float32.
    """

    def __init__(self, params: Tensor, log_width: float) -> None:
        """params = raw α and raw β side by side, `[..., 2·D]`."""
        self.dtype, self.log_width = params.dtype, log_width
        self.alpha_less_1, self.beta_less_1 = F.softplus(params.double()).chunk(2, dim=-1)  # [..., D]
        self.alpha, self.beta = 1.0 + self.alpha_less_1, 1.0 + self.beta_less_1

    def with_params(self, params: Tensor) -> Beta:
        """A distribution of the same kind from stored parameters."""
        return Beta(params, self.log_width)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Candidates (z, log u) for two gamma variates per action dimension, in one row: `[..., 4·candidates·D]`."""
        pairs = (*shape[:-1], shape[-1] * GAMMA_CANDIDATES)  # one gamma variate per parameter
        normal = torch.randn(pairs, generator=generator, dtype=torch.float32, device=generator.device)
        uniform = torch.rand(pairs, generator=generator, dtype=torch.float32, device=generator.device)
        return torch.cat([normal, uniform.clamp_(min=torch.finfo(uniform.dtype).tiny).log_()], dim=-1)

    @staticmethod
    def noise_size(num_params: int) -> int:
        """Numbers in one row of the noise."""
        return 2 * GAMMA_CANDIDATES * num_params

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        """X/(X + Y) of gamma variates X, Y of shapes α, β is a sample of Beta(α, β)."""
        x, y = _gamma(1.0 + F.softplus(params.double()), noise).chunk(2, dim=-1)
        return (x / (x + y)).clamp(BETA_EDGE, 1.0 - BETA_EDGE).to(params.dtype)

    def mode(self) -> Tensor:
        """(α − 1)/(α + β − 2); ½ where both are 1 and nothing is likelier."""
        total = self.alpha_less_1 + self.beta_less_1
        peak = torch.where(total > 0.0, self.alpha_less_1 / total.clamp(min=torch.finfo(total.dtype).tiny), 0.5)
        return peak.clamp(BETA_EDGE, 1.0 - BETA_EDGE).to(self.dtype)

    def _log_beta(self) -> Tensor:
        """log B(α, β) = log Γ(α) + log Γ(β) − log Γ(α + β)."""
        return torch.lgamma(self.alpha) + torch.lgamma(self.beta) - torch.lgamma(self.alpha + self.beta)

    def log_prob(self, action: Tensor) -> Tensor:
        """Σ_d (α − 1) log x + (β − 1) log(1 − x) − log B(α, β) − log(high − low)."""
        x = action.double()
        density = self.alpha_less_1 * x.log() + self.beta_less_1 * torch.log1p(-x) - self._log_beta()
        return (density.sum(-1) - self.log_width).to(self.dtype)

    def entropy(self) -> Tensor:
        """Σ_d log B − (α − 1) ψ(α) − (β − 1) ψ(β) + (α + β − 2) ψ(α + β) + log(high − low)."""
        return (self._entropies().sum(-1) + self.log_width).to(self.dtype)

    def _entropies(self) -> Tensor:
        """The entropy of each x_d, on (0, 1)."""
        alpha, beta = self.alpha_less_1, self.beta_less_1
        at = self._log_beta() - alpha * torch.digamma(self.alpha) - beta * torch.digamma(self.beta)
        return at + (alpha + beta) * torch.digamma(self.alpha + self.beta)

    def dimensions(self) -> tuple[Tensor, Tensor]:
        """Var = αβ / ((α + β)² (α + β + 1))."""
        total = self.alpha + self.beta
        variance = self.alpha * self.beta / (total * total * (total + 1.0))
        return self._entropies().to(self.dtype), variance.sqrt().to(self.dtype)

    def kl_to(self, other: Beta) -> Tensor:
        """KL(self‖other) = Σ_d log B_o/B_s + (α_s − α_o) ψ(α_s) + (β_s − β_o) ψ(β_s) − (both) ψ(α_s + β_s)."""
        alpha, beta = self.alpha - other.alpha, self.beta - other.beta
        at = other._log_beta() - self._log_beta() + alpha * torch.digamma(self.alpha) + beta * torch.digamma(self.beta)
        return (at - (alpha + beta) * torch.digamma(self.alpha + self.beta)).sum(-1).to(self.dtype)


def _gamma(shape: Tensor, noise: Tensor) -> Tensor:
    """Gamma variates of `shape` ≥ 1 (Marsaglia & Tsang 2000): the first accepted candidate of each, or the last."""
    normal, log_uniform = (half.reshape(*shape.shape, GAMMA_CANDIDATES) for half in noise.chunk(2, dim=-1))
    d = (shape - 1.0 / 3.0).unsqueeze(-1)
    root = 1.0 + normal / (9.0 * d).sqrt()
    v = root.clamp(min=1e-6) ** 3
    accepted = (root > 0.0) & (log_uniform < 0.5 * normal * normal + d * (1.0 - v + v.log()))
    accepted[..., -1] = True
    first = accepted.to(torch.int8).argmax(dim=-1, keepdim=True)
    return (d * v.gather(-1, first)).squeeze(-1)
