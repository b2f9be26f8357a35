"""Independent distributions, concatenated in shared rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.types import Distribution


@dataclass(frozen=True, slots=True)
class Part:
    """One distribution of a `Composite` and its columns in the shared rows."""

    make: Callable[[Tensor], Distribution]  # from its parameters
    params: slice
    action: slice
    noise: slice
    dtype: torch.dtype  # type of its own actions
    scalar: bool  # its action is one number without an axis of its own

    def own(self, action: Tensor) -> Tensor:
        """Its own action, taken from the shared row."""
        columns = action[..., self.action]
        if self.scalar:
            columns = columns.squeeze(-1)
        return columns if self.dtype.is_floating_point else columns.to(self.dtype)

    def column(self, action: Tensor) -> Tensor:
        """Its action as columns of the shared row."""
        return (action.unsqueeze(-1) if self.scalar else action).to(torch.float32)


class Composite:
    """Independent parts side by side. Actions are float32 rows `[..., Σ D]`, whole numbers where a part is discrete."""

    def __init__(self, params: Tensor, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.distributions = [part.make(params[..., part.params]) for part in parts]

    def with_params(self, params: Tensor) -> Composite:
        """A distribution of the same kind from stored parameters."""
        return Composite(params, self.parts)

    def mode(self) -> Tensor:
        pairs = zip(self.parts, self.distributions, strict=True)
        return torch.cat([part.column(d.mode()) for part, d in pairs], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        pairs = zip(self.parts, self.distributions, strict=True)
        return _sum([d.log_prob(part.own(action)) for part, d in pairs])

    def entropy(self) -> Tensor:
        return _sum([d.entropy() for d in self.distributions])

    def kl_to(self, other: Composite) -> Tensor:
        """KL(self‖other): the sum over independent parts."""
        return _sum([p.kl_to(q) for p, q in zip(self.distributions, other.distributions, strict=True)])

    def dimensions(self) -> tuple[Tensor, Tensor]:
        entropies, stds = zip(*(d.dimensions() for d in self.distributions), strict=True)
        return torch.cat(entropies, dim=-1), torch.cat(stds, dim=-1)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum(0)
