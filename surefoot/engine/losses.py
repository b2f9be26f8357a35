"""A loss declared once: its formula in PyTorch, and its name in the compiled kernels.

    L(θ) = −E[surrogate − β·KL(old‖new)] + c_v·L_V − c_e·H

Nothing here imports torch at run time: tensor methods suffice, and reading a config must stay fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Batch, Metrics, Outputs

    LossFunction: TypeAlias = Callable[[Outputs, Batch], tuple[Tensor, Metrics]]


def ratio_of(outputs: Outputs, batch: Batch) -> Tensor:
    """r_t(θ) = π_θ(a_t|s_t) / π_old(a_t|s_t), as exp of the difference of logarithms."""
    return (outputs.log_prob - batch.log_prob).exp()


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The contribution of one sample to the objective: `formula(outputs, batch, *parameters)`, `[B]`.

    `kernel`: the functor of the same formula in `kernels/src/surrogates.hpp`; None: PyTorch computes it.
    `clipped(ratio, *parameters)`, `[B]` bool: the samples that `clip_fraction` counts.
    """

    formula: Callable[..., Tensor]
    kernel: str | None = None
    clipped: Callable[..., Tensor] | None = None


LOG_PROB = Surrogate(lambda outputs, batch: outputs.log_prob * batch.advantage, "log_prob")
RATIO = Surrogate(lambda outputs, batch: ratio_of(outputs, batch) * batch.advantage, "ratio")


def present(weight: float) -> bool:
    """Whether a term has to be computed. A weight that is a tensor may change, so its term always is."""
    return not isinstance(weight, (int, float)) or weight != 0.0


@dataclass(frozen=True, slots=True)
class Loss:
    """Terms and weights of a loss. Calling it computes the loss in PyTorch; an engine may use its kernel instead."""

    surrogate: Surrogate | None  # None: the critic's loss alone
    parameters: tuple[float, ...] = ()  # the surrogate's (such as ε)
    kl_coef: float = 0.0  # β, the weight of the exact KL(old‖new)
    value_coef: float | None = None  # c_v; None: without the critic's loss
    value_loss: str = "mse"
    value_clip: float | None = None
    entropy_coef: float = 0.0  # c_e
    metrics: tuple[str, ...] = ()  # besides the terms: approx_kl, clip_fraction

    def __call__(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        """−E[surrogate − β·KL] + c_v·L_V − c_e·H, and its terms."""
        assert self.surrogate is not None, "the critic's loss alone is `of_value`"
        gain = batch.mean(self.surrogate.formula(outputs, batch, *self.parameters))
        if present(self.kl_coef):
            old = outputs.distribution.with_params(batch.dist_params)
            gain = gain - self.kl_coef * batch.mean(old.kl_to(outputs.distribution))
        entropy = batch.mean(outputs.distribution.entropy())
        loss, metrics = -gain, {"policy_loss": -gain.detach()}
        if self.value_coef is not None:
            value_loss = self.of_value(outputs.value, batch)
            loss = loss + self.value_coef * value_loss
            metrics["value_loss"] = value_loss.detach()
        if present(self.entropy_coef):  # a term times zero would still cost its backward pass
            loss = loss - self.entropy_coef * entropy
        metrics["entropy"] = entropy.detach()
        return loss, metrics | self._more(outputs, batch)

    def objective(self, outputs: Outputs, batch: Batch) -> Tensor:
        """E[surrogate] + c_e·H, which a natural step maximises."""
        assert self.surrogate is not None
        gain = batch.mean(self.surrogate.formula(outputs, batch, *self.parameters))
        if not present(self.entropy_coef):
            return gain
        return gain + self.entropy_coef * batch.mean(outputs.distribution.entropy())

    def of_value(self, value: Tensor, batch: Batch) -> Tensor:
        """E[(V(s) − target)²] or the Huber loss, optionally the maximum of the clipped and the unclipped loss."""

        def distance(v: Tensor) -> Tensor:
            error = v - batch.value_target
            if self.value_loss == "mse":
                return error * error
            size = error.abs()
            return (0.5 * error * error).where(size < 1.0, size - 0.5)

        loss = distance(value)
        if self.value_clip is not None:
            near = batch.value + (value - batch.value).clamp(-self.value_clip, self.value_clip)
            loss = loss.maximum(distance(near))
        return batch.mean(loss)

    def _more(self, outputs: Outputs, batch: Batch) -> Metrics:
        if not self.metrics:
            return {}
        ratio = ratio_of(outputs, batch).detach()
        found = {"approx_kl": approx_kl(outputs, batch, ratio)}
        if self.surrogate is not None and self.surrogate.clipped is not None:
            found["clip_fraction"] = batch.mean(self.surrogate.clipped(ratio, *self.parameters).float())
        return {name: found[name] for name in self.metrics}


def approx_kl(outputs: Outputs, batch: Batch, ratio: Tensor) -> Tensor:
    """E[(r − 1) − log r]: an unbiased, non-negative estimate of KL(old‖new) from the samples alone."""
    return batch.mean(ratio - 1.0 - (outputs.log_prob.detach() - batch.log_prob))
