"""The natural gradient of a policy: what NPG and TRPO share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.math.trust_region import conjugate_gradient, fisher_vector_product, flat_gradient, step_scale
from surefoot.types import Batch, Outputs

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic

Objective = Callable[[Outputs, Batch], Tensor]


def natural_step(
    policy: ActorCritic,
    parameters: Sequence[Tensor],
    objective: Objective,
    batch: Batch,
    *,
    max_kl: float,
    cg_iterations: int,
    cg_damping: float,
    fisher_fraction: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(s, ∇L·s): the actor's step s = √(2δ / xᵀFx)·x with x ≈ F⁻¹∇L, and the gain that the gradient predicts for it.

    F is estimated on every `1/fisher_fraction`-th sample; a random one would cost the same and repeat less exactly.
    """
    gradient = flat_gradient(objective(policy.evaluate(batch.obs, batch.action, batch.context), batch), parameters)
    sample = batch
    if fisher_fraction < 1.0:
        stride = max(1, round(1.0 / fisher_fraction))
        sample = batch.take(torch.arange(0, batch.units, stride, device=batch.obs.device))
    new = policy.actions.distribution(policy.action_params(sample.obs, sample.context))
    old = policy.actions.distribution(sample.dist_params)
    product = fisher_vector_product(sample.mean(old.kl_to(new)), parameters, cg_damping)
    direction = conjugate_gradient(product, gradient, cg_iterations)
    step = step_scale(direction, product, max_kl) * direction
    return step, gradient @ step
