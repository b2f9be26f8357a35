"""Action distributions: batches of them, without `torch.distributions` in the loop.

Each is made from one tensor of parameters (stored with the rollout, so that KL(old‖new) is exact) and drawn from by a
deterministic map of pre-drawn noise, so that sampling needs no random number generator in the hot loop.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

LOG_2PI = math.log(2.0 * math.pi)


class Categorical:
    """π(a|s) = softmax(logits)_a over A choices. Actions are indices, of the batch's shape."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = torch.log_softmax(logits, dim=-1)  # [..., A]

    def with_params(self, params: Tensor) -> Categorical:
        """A distribution of the same kind from stored parameters."""
        return Categorical(params)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Gumbel noise −log(−log u) of the parameters' shape."""
        uniform = torch.rand(shape, generator=generator, device=generator.device)
        tiny = torch.finfo(uniform.dtype).tiny
        return uniform.clamp_(min=tiny).log_().neg_().clamp_(min=tiny).log_().neg_()

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        """argmax(logits + Gumbel) is a sample of softmax(logits)."""
        return (params + noise).argmax(dim=-1)

    def sample(self, noise: Tensor) -> Tensor:
        return self.draw(self.log_probs, noise)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """−Σ_a p log p."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl_to(self, other: Categorical) -> Tensor:
        """KL(self‖other) = Σ_a p (log p − log q)."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


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
        return torch.randn((*shape[:-1], shape[-1] // 2), generator=generator, device=generator.device)

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = params.chunk(2, dim=-1)
        return mean + log_std.exp() * noise

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * noise

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
