"""Discrete distributions: one choice, several independent choices, bits; and masks of legal choices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def masked_fill_value(dtype: torch.dtype) -> float:
    """The logit of an illegal choice: so low that its probability is exactly 0, and finite.

    With −∞ the product 0·(−∞) makes entropy and KL NaN. Half the lowest number leaves room to subtract log Σ exp.
    """
    return torch.finfo(dtype).min / 2


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits of the softmax over the legal choices only, `mask` True where legal. The others get no gradient."""
    return torch.where(mask, logits, masked_fill_value(logits.dtype))


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
        return Categorical.gumbel(torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device))

    @staticmethod
    def gumbel(uniform: Tensor) -> Tensor:
        """−log(−log u), in place."""
        tiny = torch.finfo(uniform.dtype).tiny
        return uniform.clamp_(min=tiny).log_().neg_().clamp_(min=tiny).log_().neg_()

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        """argmax(logits + Gumbel) is a sample of softmax(logits)."""
        return (params + noise).argmax(dim=-1)

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

    def dimensions(self) -> tuple[Tensor, Tensor]:
        entropy = self.entropy().unsqueeze(-1)
        return entropy, entropy[..., :0]


class MultiCategorical:
    """K independent categorical variables of `sizes` choices, their logits side by side. Actions are `[..., K]`."""

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.log_probs = torch.log_softmax(self._table(logits, sizes), dim=-1)  # [..., K, largest size]

    @staticmethod
    def _table(logits: Tensor, sizes: Sequence[int]) -> Tensor:
        """`[..., Σ sizes]` as one row per variable, `[..., K, largest size]`; the padding beyond a size is illegal."""
        assert logits.shape[-1] == sum(sizes), f"logits {tuple(logits.shape)}, sizes {sizes}"
        largest = max(sizes)
        if min(sizes) == largest:
            return logits.reshape(*logits.shape[:-1], len(sizes), largest)
        fill = masked_fill_value(logits.dtype)
        rows = torch.split(logits, list(sizes), dim=-1)
        return torch.stack([F.pad(row, (0, largest - row.shape[-1]), value=fill) for row in rows], dim=-2)

    def with_params(self, params: Tensor) -> MultiCategorical:
        """A distribution of the same kind from stored parameters."""
        return MultiCategorical(params, self.sizes)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Gumbel noise of the parameters' shape."""
        return Categorical.noise(shape, generator)

    @staticmethod
    def draw(params: Tensor, noise: Tensor, sizes: Sequence[int]) -> Tensor:
        """argmax(logits + Gumbel) of each variable."""
        return MultiCategorical._table(params + noise, sizes).argmax(dim=-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self) -> Tensor:
        """Σ_k −Σ_a p log p."""
        return -(self.log_probs.exp() * self.log_probs).sum((-2, -1))

    def kl_to(self, other: MultiCategorical) -> Tensor:
        """KL(self‖other) = Σ_k Σ_a p (log p − log q)."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum((-2, -1))

    def dimensions(self) -> tuple[Tensor, Tensor]:
        entropy = -(self.log_probs.exp() * self.log_probs).sum(-1)
        return entropy, entropy[..., :0]


class Bernoulli:
    """D independent bits, P(a_d = 1) = σ(logit_d). Actions are `[..., D]` of 0 and 1."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits  # [..., D]
        self.log_one, self.log_zero = F.logsigmoid(logits), F.logsigmoid(-logits)

    def with_params(self, params: Tensor) -> Bernoulli:
        """A distribution of the same kind from stored parameters."""
        return Bernoulli(params)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Logistic noise log u − log(1 − u) of the parameters' shape."""
        uniform = torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device)
        uniform.clamp_(torch.finfo(uniform.dtype).tiny, 1.0 - 2.0**-24)
        return uniform.log() - torch.log1p(-uniform)

    @staticmethod
    def draw(params: Tensor, noise: Tensor) -> Tensor:
        """logit + logistic > 0 with probability σ(logit)."""
        return (params + noise > 0.0).to(torch.int64)

    def mode(self) -> Tensor:
        return (self.logits > 0.0).to(torch.int64)

    def log_prob(self, action: Tensor) -> Tensor:
        """Σ_d log σ(±logit)."""
        return torch.where(action > 0, self.log_one, self.log_zero).sum(-1)

    def entropy(self) -> Tensor:
        """Σ_d −p log p − (1 − p) log(1 − p)."""
        return -(self.log_one.exp() * self.log_one + self.log_zero.exp() * self.log_zero).sum(-1)

    def kl_to(self, other: Bernoulli) -> Tensor:
        """KL(self‖other) = Σ_d p log(p/q) + (1 − p) log((1 − p)/(1 − q))."""
        one = self.log_one.exp() * (self.log_one - other.log_one)
        zero = self.log_zero.exp() * (self.log_zero - other.log_zero)
        return (one + zero).sum(-1)

    def dimensions(self) -> tuple[Tensor, Tensor]:
        entropy = -(self.log_one.exp() * self.log_one + self.log_zero.exp() * self.log_zero)
        return entropy, entropy[..., :0]
