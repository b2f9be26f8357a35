"""Adam and RMSprop on slices of one flat vector: a few operations per step, and a state of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NotRequired, TypedDict

import torch
from torch import Tensor

from surefoot.schema import ArrayOf, Optional, Record, Shape, Whole

if TYPE_CHECKING:
    from surefoot.engine.config import GradientConfig
    from surefoot.engine.torch.flat import FlatParameters

RATE_RANGE = (1e-5, 1e-2)  # for the KL-adaptive learning rate


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
    critic_steps: NotRequired[int]
    first: Tensor
    second: Tensor


class LearnerState(TypedDict):
    """What a learner saves besides the weights."""

    optimizer: OptimizerState
    rate_scale: float
    rate_is_set: NotRequired[bool | None]
    shuffle: Tensor


class FlatOptimizer:
    """Adam (β 0.9, 0.999; eps 1e-5) or RMSprop (α 0.99; eps 1e-5), equal to `torch.optim`'s to rounding.

    Adam:     m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← θ − α·(m/(1−β₁ᵗ)) / (√(v/(1−β₂ᵗ)) + ε)
    Adam-Rel: the same, with t counted from the start of each update (Ellis et al. 2024). A new rollout changes the
              scale of g. If it grows, m adapts before v does, and with a large t the first steps are far too long.
    RMSprop:  v ← αv + (1−α)g²,  θ ← θ − α·g / (√v + ε)
    """

    eps = 1e-5

    def __init__(
        self,
        kind: str,
        vector: Tensor,
        gradient: Tensor,
        slices: Sequence[tuple[int, int, float]],
        moments: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """`moments`: shared with an optimizer of other slices."""
        self.kind, self.steps, self._rate_factor = kind, 0, 1.0
        self.of_critic: FlatOptimizer | None = None  # trains the critic apart, with the same moments and its own clock
        self.ranges = [part for part in slices if part[1] > part[0]]  # (begin, end, learning rate)
        self.first, self.second = moments or (torch.zeros_like(vector), torch.zeros_like(vector))
        self.slices = [
            Slice(vector[a:b], gradient[a:b], self.first[a:b], self.second[a:b], rate) for a, b, rate in self.ranges
        ]

    @property
    def base_rate(self) -> float:
        """The first slice's learning rate before scaling."""
        return self.slices[0].base_rate

    @property
    def rate_factor(self) -> float:
        """What all learning rates are multiplied with."""
        return self._rate_factor

    @rate_factor.setter
    def rate_factor(self, factor: float) -> None:
        self._rate_factor = factor
        if self.of_critic is not None:
            self.of_critic.rate_factor = factor

    @property
    def learning_rate(self) -> float:
        """The first slice's learning rate for the next step."""
        return self.base_rate * self.rate_factor

    def begin_update(self) -> None:
        """A new rollout is about to be learned from."""
        if self.kind == "adam-rel":
            self.steps = 0
        if self.of_critic is not None:
            self.of_critic.begin_update()

    def step(self) -> None:
        self.steps += 1
        for part in self.slices:
            if self.kind == "rmsprop":
                self._rmsprop(part, part.base_rate * self.rate_factor)
            else:
                self._adam(part, part.base_rate * self.rate_factor)

    def _adam(self, part: Slice, rate: float) -> None:
        part.first.lerp_(part.gradient, 0.1)
        part.second.mul_(0.999).addcmul_(part.gradient, part.gradient, value=0.001)
        denominator = part.second.sqrt().mul_(1.0 / math.sqrt(1.0 - 0.999**self.steps)).add_(self.eps)
        part.parameters.addcdiv_(part.first, denominator, value=-rate / (1.0 - 0.9**self.steps))

    def _rmsprop(self, part: Slice, rate: float) -> None:
        part.second.mul_(0.99).addcmul_(part.gradient, part.gradient, value=0.01)
        part.parameters.addcdiv_(part.gradient, part.second.sqrt().add_(self.eps), value=-rate)

    def state_dict(self) -> OptimizerState:
        state: OptimizerState = {"steps": self.steps, "first": self.first.clone(), "second": self.second.clone()}
        return state if self.of_critic is None else {**state, "critic_steps": self.of_critic.steps}

    def state_shape(self) -> Shape:
        size, dtype = tuple(self.first.shape), str(self.first.dtype).removeprefix("torch.")
        return Record(
            steps=Whole(),
            critic_steps=Optional(Whole(), later=True),
            first=ArrayOf(size, dtype),
            second=ArrayOf(size, dtype, low=0.0),
        )

    def load_state_dict(self, state: OptimizerState) -> None:
        self.steps = state["steps"]
        if self.of_critic is not None:  # if the run began with one optimizer, it had one clock
            found = state.get("critic_steps")
            self.of_critic.steps = self.steps if found is None else found
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])


def build_optimizer(
    flat: FlatParameters, config: GradientConfig, train_actor: bool, critic_rate: float, *, apart: bool = False
) -> FlatOptimizer:
    """The optimizer of all parameters, or of the critic's alone; the critic may have its own learning rate.

    `apart`: that of the actor, which has another one for the critic.
    """
    split, end, rate = flat.actor_size, len(flat.vector), config.learning_rate
    make = partial(FlatOptimizer, config.optimizer, flat.vector, flat.gradient)
    if not train_actor:
        return make([(split, end, critic_rate)])
    if apart:
        made = make([(0, split, rate)])
        made.of_critic = make([(split, end, critic_rate)], (made.first, made.second))
        return made
    return make([(0, end, rate)] if rate == critic_rate else [(0, split, rate), (split, end, critic_rate)])


def adapted(scale: float, kl: float, target: float | None, base_rate: float) -> float:
    """The scale of a learning rate for the next update, which keeps the rate within `RATE_RANGE`; None: as it is."""
    if target is None:
        return scale
    if kl > 2.0 * target:
        scale /= 1.5
    elif kl < target / 2.0:
        scale *= 1.5
    low, high = (bound / base_rate for bound in RATE_RANGE)
    return min(max(scale, low), high)


def step_outwards(vector: Tensor, start: Tensor, outer_rate: float) -> None:
    """θ ← θ_old + σ·(θ − θ_old): an outer step along a whole update (Tan et al. 2024). Moments stay as they are."""
    if outer_rate != 1.0:
        vector.copy_(torch.lerp(start, vector, outer_rate))
