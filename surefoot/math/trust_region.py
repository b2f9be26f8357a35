"""The tools of NPG and TRPO: flat gradients, Fisher-vector products, conjugate gradient, backtracking."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def flat_gradient(
    scalar: Tensor,
    parameters: Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
) -> Tensor:
    """∇_θ scalar as one vector; parameters that the scalar does not depend on contribute zeros."""
    gradients = torch.autograd.grad(
        scalar, parameters, create_graph=create_graph, retain_graph=retain_graph, allow_unused=True
    )
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, gradients, strict=True)]
    )


def fisher_vector_product(kl: Tensor, parameters: Sequence[Tensor], damping: float = 0.0) -> Callable[[Tensor], Tensor]:
    """v ↦ (F + damping·I) v, where F is the Hessian of the mean KL(old‖θ) at θ = old, the Fisher matrix.

    `kl` is that mean, computed with gradients at θ = old. Each product is one more backward pass:
    F v = ∇_θ (∇_θ KL · v).
    """
    gradient = flat_gradient(kl, parameters, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        return flat_gradient(gradient @ vector, parameters, retain_graph=True) + damping * vector

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, iterations: int = 10, tolerance: float = 1e-10
) -> Tensor:
    """x ≈ A⁻¹ b for a positive definite A given by its products (Hestenes & Stiefel 1952).

    Stops early when ‖b − A x‖² falls below tolerance · ‖b‖², or at a direction along which A is not positive.
    """
    x = torch.zeros_like(b)
    residual, direction = b.clone(), b.clone()
    squared = _dot(residual, residual)
    target = tolerance * squared
    for _ in range(iterations):
        if squared <= target:
            break
        image = product(direction)
        curvature = _dot(direction, image)
        if not curvature > 0.0:  # also catches NaN
            break
        alpha = squared / curvature
        x.add_(direction, alpha=alpha)
        residual.sub_(image, alpha=alpha)
        previous, squared = squared, _dot(residual, residual)
        direction.mul_(squared / previous).add_(residual)
    return x


def step_scale(direction: Tensor, product: Callable[[Tensor], Tensor], max_kl: float) -> float:
    """√(2δ / xᵀFx): how far along x the quadratic model of the KL reaches δ; 0 if xᵀFx is not positive."""
    curvature = _dot(direction, product(direction))
    return (2.0 * max_kl / curvature) ** 0.5 if curvature > 0.0 else 0.0


def backtrack(accept: Callable[[float], bool], factor: float = 0.8, tries: int = 10) -> float | None:
    """The first of 1, factor, factor², … that `accept` accepts, or None after `tries` attempts."""
    fraction = 1.0
    for _ in range(tries):
        if accept(fraction):
            return fraction
        fraction *= factor
    return None


def _dot(a: Tensor, b: Tensor) -> float:
    """aᵀb in float64, because the curvature of a nearly converged direction is lost in float32."""
    return float(torch.dot(a.double(), b.double()))
