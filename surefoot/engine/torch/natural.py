"""The natural gradient of a policy: what NPG and TRPO share."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from surefoot.math.trust_region import conjugate_gradient, fisher_vector_product, step_scale
from surefoot.types import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from surefoot.engine.contract import Observer
    from surefoot.policies.actor_critic import ActorCritic

GOLDEN = (5.0**0.5 - 1.0) / 2.0

Product = Callable[["Tensor"], "Tensor"]


class NaturalStep(Protocol):
    """How a natural step is computed."""

    @property
    def max_kl(self) -> float: ...

    @property
    def cg_iterations(self) -> int: ...

    @property
    def cg_damping(self) -> float: ...

    @property
    def fisher_fraction(self) -> float: ...


def natural_step(
    gradient: Tensor, product: Product, config: NaturalStep, observer: Observer | None = None
) -> tuple[Tensor, Tensor]:
    """(s, ∇L·s): the actor's step s = √(2δ / xᵀFx)·x with x ≈ F⁻¹∇L, and its predicted gain."""
    direction = conjugate_gradient(product, gradient, config.cg_iterations)
    step = step_scale(direction, product, config.max_kl) * direction
    if observer is not None:
        observer("policy", gradient)
        observer("natural_step", step)
    return step, gradient @ step


def fisher_samples(batch: Batch, fraction: float) -> Batch:
    """A fraction of the samples, spread evenly over envs and time; with a memory, a fraction of the whole envs."""
    count = max(1, round(fraction * batch.units))
    if count == batch.units:
        return batch
    envs = batch.num_envs if batch.context is None else batch.units
    index = spread(batch.units // envs, envs, count)
    return batch.take(torch.from_numpy(index).to(batch.obs.device))


@lru_cache(maxsize=4)
def spread(steps: int, envs: int, count: int) -> NDArray[np.int64]:
    """Choose `count` of the samples t·envs + n, deterministically, so that a resumed run need not repeat a draw.

    Each env contributes the same number, or one more. Times are evenly spaced, with an offset per env given by the
    golden ratio.
    """
    each = np.full(envs, count // envs)
    each[_even(envs, count % envs)] += 1
    env = np.repeat(np.arange(envs), each)
    within = np.arange(count) - np.repeat(np.cumsum(each) - each, each)
    offset = np.arange(1, envs + 1) * GOLDEN % 1.0
    time = ((within + offset[env]) * steps / each[env]).astype(np.int64)
    return np.sort(time * envs + env)


def _even(size: int, count: int) -> NDArray[np.int64]:
    """`count` of `size` indices, evenly spaced."""
    return ((2 * np.arange(count) + 1) * size) // (2 * max(1, count))


def fisher_by_autograd(
    policy: ActorCritic, parameters: list[torch.nn.Parameter], batch: Batch, damping: float
) -> Product:
    """v ↦ (F + damping·I) v on these samples."""
    with policy.uncompiled():  # compiled parts have no second derivative
        new = policy.actions.distribution(policy.action_params(batch.obs, batch.context))
    old = policy.actions.distribution(batch.dist_params)
    return fisher_vector_product(batch.mean(old.kl_to(new)), parameters, damping)
