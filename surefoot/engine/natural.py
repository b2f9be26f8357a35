"""The natural gradient of a policy: what NPG and TRPO share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from surefoot.math.trust_region import conjugate_gradient, fisher_vector_product, step_scale
from surefoot.types import Batch, Outputs

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.policies.actor_critic import ActorCritic

Objective = Callable[[Outputs, Batch], "Tensor"]
Product = Callable[["Tensor"], "Tensor"]


def natural_step(gradient: Tensor, product: Product, *, max_kl: float, cg_iterations: int) -> tuple[Tensor, Tensor]:
    """(s, ∇L·s): the actor's step s = √(2δ / xᵀFx)·x with x ≈ F⁻¹∇L, and the gain that the gradient predicts for it."""
    direction = conjugate_gradient(product, gradient, cg_iterations)
    step = step_scale(direction, product, max_kl) * direction
    return step, gradient @ step


def fisher_samples(batch: Batch, fraction: float) -> Batch:
    """Every `1/fraction`-th sample; a random one would cost the same and repeat less exactly."""
    if fraction >= 1.0:
        return batch
    stride = max(1, round(1.0 / fraction))
    return batch.take(torch.arange(0, batch.units, stride, dtype=torch.int64, device=batch.obs.device))


def fisher_by_autograd(
    policy: ActorCritic, parameters: list[torch.nn.Parameter], batch: Batch, damping: float
) -> Product:
    """v ↦ (F + damping·I) v on these samples."""
    with policy.uncompiled():  # compiled parts have no second derivative
        new = policy.actions.distribution(policy.action_params(batch.obs, batch.context))
    old = policy.actions.distribution(batch.dist_params)
    return fisher_vector_product(batch.mean(old.kl_to(new)), parameters, damping)
