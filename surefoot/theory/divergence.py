"""How far apart two policies are, and the lower bound on η that follows from it.

    η(π̃) ≥ L_π(π̃) − C·D_KL^max(π, π̃),    C = 4εγ/(1−γ)²,    ε = max_{s,a} |A_π(s, a)|

Shapes: divergences of distributions `[..., A]` are `[...]`; those of policies `[..., S, A]`, over states, are `[...]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory.exact import advantage, surrogate, visitation

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def total_variation(p: Array, q: Array) -> Array:
    """D_TV(p, q) = ½ Σ_i |p_i − q_i|."""
    distance: Array = 0.5 * np.abs(p - q).sum(-1)
    return distance


def kl(p: Array, q: Array) -> Array:
    """D_KL(p‖q) = Σ_i p_i·log(p_i/q_i); infinite if q is 0 where p is not.

    Summed as Σ p·(u − log(1+u)) with u = q/p − 1, which is the same for distributions and stays accurate where they
    nearly agree: every term is small and none is negative.
    """
    safe = np.where(p > 0.0, p, 1.0)
    u = np.where(p > 0.0, (q - p) / safe, 0.0)
    with np.errstate(divide="ignore"):
        log_ratio = np.where(np.abs(u) < 0.5, np.log1p(np.maximum(u, -0.5)), np.log(np.where(p > 0.0, q, 1.0) / safe))
    excess = np.where(np.abs(u) < 1e-3, u**2 * (1 / 2 - u * (1 / 3 - u * (1 / 4 - u / 5))), u - log_ratio)
    terms = np.where(p > 0.0, p * excess, q)
    total: Array = terms.sum(-1)
    return total


def max_total_variation(mdp: MDP, old: Array, new: Array) -> Array:
    """max_s D_TV(π(·|s), π̃(·|s)) over the states in which an action is chosen."""
    distance: Array = total_variation(old, new)[..., mdp.live].max(-1)
    return distance


def max_kl(mdp: MDP, old: Array, new: Array) -> Array:
    """D_KL^max(π, π̃) = max_s D_KL(π(·|s)‖π̃(·|s))."""
    distance: Array = kl(old, new)[..., mdp.live].max(-1)
    return distance


def mean_kl(mdp: MDP, old: Array, new: Array) -> Array:
    """E_{s∼ρ_π} D_KL(π(·|s)‖π̃(·|s)), with ρ_π normalised to a distribution: TRPO's constraint."""
    rho = visitation(mdp, old)
    mean: Array = (rho * kl(old, new)).sum(-1) / rho.sum(-1)
    return mean


def max_advantage(mdp: MDP, policy: Array) -> Array:
    """ε = max_{s,a} |A_π(s, a)|."""
    epsilon: Array = np.abs(advantage(mdp, policy)).max((-2, -1))
    return epsilon


def bound_constant(mdp: MDP, policy: Array) -> Array:
    """C = 4εγ/(1−γ)²."""
    return 4.0 * max_advantage(mdp, policy) * mdp.gamma / (1.0 - mdp.gamma) ** 2


def lower_bound(mdp: MDP, old: Array, new: Array) -> Array:
    """L_π(π̃) − C·D_KL^max(π, π̃) ≤ η(π̃). With C = 0 (γ = 0), even an infinite KL costs nothing, and L is η."""
    constant = bound_constant(mdp, old)
    distance = np.where(constant > 0.0, max_kl(mdp, old, new), 0.0)
    bound: Array = surrogate(mdp, old, new) - constant * distance
    return bound


def total_variation_bound(mdp: MDP, old: Array, new: Array) -> Array:
    """L_π(π̃) − C·α² with α = D_TV^max: the first form of the bound, never below the second."""
    bound: Array = surrogate(mdp, old, new) - bound_constant(mdp, old) * max_total_variation(mdp, old, new) ** 2
    return bound
