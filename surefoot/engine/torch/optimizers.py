"""Adam and RMSprop on slices of one flat vector: a few operations per step, and a state of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from surefoot.schema import ArrayOf, Record, Shape, Whole

if TYPE_CHECKING:
    from surefoot.engine.config import GradientConfig
    from surefoot.engine.torch.flat import FlatParameters


@dataclass
class Slice:
    """Parameters that share a learning rate, with views of their gradient and of the moments."""

    parameters: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    base_rate: float


class OptimizerState(TypedDict):
    steps: int
    first: Tensor
    second: Tensor


class FlatOptimizer:
    """Adam (β 0.9, 0.999; eps 1e-5) or RMSprop (α 0.99; eps 1e-5), equal to `torch.optim`'s to rounding.

    Adam:     m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε)
    RMSprop:  v ← αv + (1−α)g²,  θ ← θ − α·g / (√v + ε)
    """

    eps = 1e-5

    def __init__(self, kind: str, vector: Tensor, gradient: Tensor, slices: Sequence[tuple[int, int, float]]) -> None:
        self.kind, self.steps, self.rate_factor = kind, 0, 1.0
        self.ranges = [part for part in slices if part[1] > part[0]]  # (begin, end, learning rate)
        self.first, self.second = torch.zeros_like(vector), torch.zeros_like(vector)
        self.slices = [
            Slice(vector[a:b], gradient[a:b], self.first[a:b], self.second[a:b], rate) for a, b, rate in self.ranges
        ]

    @property
    def base_rate(self) -> float:
        """The first slice's learning rate before scaling."""
        return self.slices[0].base_rate

    @property
    def learning_rate(self) -> float:
        """The first slice's learning rate for the next step."""
        return self.base_rate * self.rate_factor

    def step(self) -> None:
        self.steps += 1
        for part in self.slices:
            if self.kind == "adam":
                self._adam(part, part.base_rate * self.rate_factor)
            else:
                self._rmsprop(part, part.base_rate * self.rate_factor)

    def _adam(self, part: Slice, rate: float) -> None:
        part.first.lerp_(part.gradient, 0.1)
        part.second.mul_(0.999).addcmul_(part.gradient, part.gradient, value=0.001)
        denominator = part.second.sqrt().mul_(1.0 / math.sqrt(1.0 - 0.999**self.steps)).add_(self.eps)
        part.parameters.addcdiv_(part.first, denominator, value=-rate / (1.0 - 0.9**self.steps))

    def _rmsprop(self, part: Slice, rate: float) -> None:
        part.second.mul_(0.99).addcmul_(part.gradient, part.gradient, value=0.01)
        part.parameters.addcdiv_(part.gradient, part.second.sqrt().add_(self.eps), value=-rate)

    def state_dict(self) -> OptimizerState:
        return {"steps": self.steps, "first": self.first.clone(), "second": self.second.clone()}

    def state_shape(self) -> Shape:
        size, dtype = tuple(self.first.shape), str(self.first.dtype).removeprefix("torch.")
        return Record(steps=Whole(), first=ArrayOf(size, dtype), second=ArrayOf(size, dtype, low=0.0))

    def load_state_dict(self, state: OptimizerState) -> None:
        self.steps = state["steps"]
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])


def build_optimizer(
    flat: FlatParameters, config: GradientConfig, train_actor: bool, critic_rate: float
) -> FlatOptimizer:
    """The optimizer of all parameters, or of the critic's alone; the critic may have its own learning rate."""
    split, end, rate = flat.actor_size, len(flat.vector), config.learning_rate
    if not train_actor:
        slices = [(split, end, critic_rate)]
    elif rate == critic_rate:
        slices = [(0, end, rate)]
    else:
        slices = [(0, split, rate), (split, end, critic_rate)]
    return FlatOptimizer(config.optimizer, flat.vector, flat.gradient, slices)
