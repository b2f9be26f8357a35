"""Exact gradients of every objective of the lecture, for softmax policies π = softmax(Φθ).

All of them have one form: with w(s) the weight of a state and g(s, a) the slope of the objective in π(a|s)·w(s),

    ∇_θ = Φᵀ [ w(s)·π_θ(a|s)·(g(s, a) − Σ_b π_θ(b|s)·g(s, b)) ]

Parameters and gradients are `[..., D, A]`. η and L are sums over ρ; the objectives of PPO are means, over d = ρ/Σρ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory.exact import advantage, expected_gain, visitation

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def weights(mdp: MDP, policy: Array) -> Array:
    """d_π = ρ_π / Σρ_π: the distribution of the states that sampling meets. `[..., S]`."""
    rho = visitation(mdp, policy)
    share: Array = rho / rho.sum(-1, keepdims=True)
    return share


def softmax_gradient(mdp: MDP, weight: Array, policy: Array, slope: Array) -> Array:
    """Φᵀ[w·π·(g − E_π g)], the form above. `[..., D, A]`."""
    centred = slope - (policy * slope).sum(-1, keepdims=True)
    gradient: Array = mdp.basis.T @ (weight[..., None] * policy * centred)
    return gradient


def policy_gradient(mdp: MDP, parameters: Array) -> Array:
    """∇η(θ) = Σ_s ρ_θ(s)·Σ_a ∇π_θ(a|s)·A_θ(s, a): the policy-gradient theorem."""
    policy = mdp.policy(parameters)
    return softmax_gradient(mdp, visitation(mdp, policy), policy, advantage(mdp, policy))


def surrogate_gradient(mdp: MDP, old: Array, parameters: Array) -> Array:
    """∇_θ L_old(θ): states and advantages are the old policy's. At π_θ = old it is ∇η."""
    return softmax_gradient(mdp, visitation(mdp, old), mdp.policy(parameters), advantage(mdp, old))


def numerical_gradient(function: Callable[[Array], Array], parameters: Array, width: float = 1e-5) -> Array:
    """Central differences of a function of θ `[D, A]`, to check the formulas with."""
    gradient = np.zeros_like(parameters)
    for index in np.ndindex(parameters.shape):
        move = np.zeros_like(parameters)
        move[index] = width
        gradient[index] = (function(parameters + move) - function(parameters - move)) / (2.0 * width)
    return gradient


def fisher(mdp: MDP, parameters: Array) -> Array:
    """F = E_{s∼d}[∇² D_KL(π_θ‖·)] = Σ_s d(s)·φφᵀ ⊗ (diag π − ππᵀ). `[..., D·A, D·A]`."""
    policy, basis = mdp.policy(parameters), mdp.basis
    inner = policy[..., :, None] * np.eye(mdp.num_actions) - policy[..., :, None] * policy[..., None, :]
    blocks = np.einsum("...s,sd,se,...sab->...daeb", weights(mdp, policy), basis, basis, inner)
    size = basis.shape[1] * mdp.num_actions
    matrix: Array = blocks.reshape(*policy.shape[:-2], size, size)
    return matrix


def natural_gradient(mdp: MDP, parameters: Array) -> Array:
    """x = F⁺∇L, of the mean objective L/Σρ: steepest ascent per unit of KL. For a table it is A_π up to a constant."""
    policy = mdp.policy(parameters)
    gradient = softmax_gradient(mdp, weights(mdp, policy), policy, advantage(mdp, policy))
    inverse = np.linalg.pinv(fisher(mdp, parameters), rcond=1e-12, hermitian=True)
    flat = inverse @ gradient.reshape(*gradient.shape[:-2], -1, 1)
    direction: Array = flat.reshape(gradient.shape)
    return direction


def clip_objective(ratio: Array, advantage_: Array, clip_ratio: float) -> Array:
    """min(r·A, clip(r, 1−ε, 1+ε)·A), of each sample."""
    clipped = np.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio)
    objective: Array = np.minimum(ratio * advantage_, clipped * advantage_)
    return objective


def clip_slope(ratio: Array, advantage_: Array, clip_ratio: float) -> Array:
    """∂/∂r of the clipped objective: A, or 0 where the ratio is clipped."""
    beyond = np.where(advantage_ > 0.0, ratio > 1.0 + clip_ratio, ratio < 1.0 - clip_ratio)
    return np.where(beyond, 0.0, advantage_)


def clipped_surrogate(mdp: MDP, old: Array, parameters: Array, clip_ratio: float) -> Array:
    """E_{s,a∼old}[min(r·A, clip(r)·A)]. `[...]`."""
    gain = clip_objective(mdp.policy(parameters) / old, advantage(mdp, old), clip_ratio)
    return expected_gain(weights(mdp, old), old, gain)


def clipped_gradient(mdp: MDP, old: Array, parameters: Array, clip_ratio: float) -> Array:
    """∇_θ of the clipped surrogate: clipped samples contribute nothing."""
    policy = mdp.policy(parameters)
    slope = clip_slope(policy / old, advantage(mdp, old), clip_ratio)
    return softmax_gradient(mdp, weights(mdp, old), policy, slope)


def penalised_gradient(mdp: MDP, old: Array, parameters: Array, kl_coef: float) -> Array:
    """∇_θ E_{s∼d}[Σ_a π_θ·A − β·D_KL(old‖π_θ)]; a softmax's ∇D_KL(old‖π) in its logits is π − old."""
    policy, share = mdp.policy(parameters), weights(mdp, old)
    gain = softmax_gradient(mdp, share, policy, advantage(mdp, old))
    price: Array = mdp.basis.T @ (share[..., None] * (policy - old))
    return gain - kl_coef * price
