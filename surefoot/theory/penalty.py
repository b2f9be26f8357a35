"""The policy that maximises the penalised surrogate, exactly, among all tables.

For one state, max_q Σ_a q(a)·A(a) − λ·D_KL(π‖q) has the solution

    q(a) = λ·π(a) / (x + A* − A(a)),    A* = max_a A(a),    Σ_a q(a) = 1,    x > 0

A larger x means a larger price λ and a smaller KL. With the mean KL, every state pays the same λ = β. With the maximum
over states, all share one budget κ: each state goes to D_KL = κ, and at the best κ the states' prices, weighted by ρ,
sum to C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory.divergence import bound_constant, kl
from surefoot.theory.exact import advantage, visitation

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array

ROUNDS = 60  # at most, of Newton's method in logarithms, which needs about eight
CLOSE = 1e-8  # in log κ and log x; the objective is flat at its maximum, so this costs 1e-16 of it
TINY = 1e-14  # smaller gains are rounding errors


def maximise_bound(mdp: MDP, policy: Array) -> Array:
    """argmax_π̃ L_π(π̃) − C·D_KL^max(π, π̃): the step that is guaranteed not to make things worse. `[..., S, A]`.

    It is π itself if π is optimal, and the greedy policy if C = 0 (γ = 0: the surrogate is exact).
    """
    gap, flat = _gaps(policy, advantage(mdp, policy))
    rho = visitation(mdp, policy) * ~flat
    constant = bound_constant(mdp, policy)
    done = (rho.sum(-1) <= 0.0) | (constant <= 0.0)
    log_constant = np.log(np.where(done, 1.0, constant))
    spread = np.sqrt((policy * gap**2).sum(-1) - (policy * gap).sum(-1) ** 2 + TINY**2)
    log_kappa = np.minimum(2.0 * (np.log((rho * spread).sum(-1) + 1e-300) - log_constant) - np.log(2.0), 5.0)
    log_x = np.log(spread) - 0.5 * (log_kappa[..., None] + np.log(2.0))
    low, high = np.full_like(log_kappa, -np.inf), np.full_like(log_kappa, np.inf)
    for _ in range(ROUNDS):
        log_x = _reach(policy, gap, flat, log_kappa, log_x)
        price, slope = _price(policy, gap, log_x)
        total = (rho * price).sum(-1) + 1e-300
        error = np.log(total) - log_constant
        low, high = np.where(error > 0.0, log_kappa, low), np.where(error > 0.0, high, log_kappa)
        # d log total / d log κ, from each state's dλ/dκ.
        tilt = np.exp(log_kappa) * (rho * slope).sum(-1) / total
        moved = _newton(log_kappa, error, tilt, (low, high), 4.0)
        if np.all(done | (np.abs(moved - log_kappa) < CLOSE)):
            break
        log_kappa = moved
    best = _tilted(policy, gap, np.exp(log_x))
    greedy = (constant <= 0.0)[..., None, None]
    best = np.where(greedy, _greedy(policy, gap), best)
    still = flat[..., None] | (done[..., None, None] & ~greedy)
    return np.where(still, policy, best)


def maximise_mean_penalty(mdp: MDP, policy: Array, kl_coef: Array | float) -> Array:
    """argmax_π̃ E_{s∼d}[Σ_a π̃·A_π − β·D_KL(π‖π̃)]: each state separately, at the price β > 0. `[..., S, A]`.

    Every state's Σ_a π̃·A_π is ≥ 0, so by the identity η never falls, whatever β. Only shared parameters can.
    """
    gap, flat = _gaps(policy, advantage(mdp, policy))
    log_price = np.broadcast_to(np.log(np.asarray(kl_coef))[..., None], flat.shape)
    best = (policy * (gap == 0.0)).sum(-1)
    low, high = log_price + np.log(best), log_price + 0.0  # λ·π(best) ≤ x ≤ λ
    for _ in range(100):
        middle = 0.5 * (low + high)
        dearer = np.log(_price(policy, gap, middle)[0]) > log_price
        low, high = np.where(dearer, low, middle), np.where(dearer, middle, high)
    return np.where(flat[..., None], policy, _tilted(policy, gap, np.exp(0.5 * (low + high))))


def _gaps(policy: Array, gain: Array) -> tuple[Array, Array]:
    """A* − A `[..., S, A]`, and the states `[..., S]` in which no policy can gain more than rounding."""
    gap = gain.max(-1, keepdims=True) - gain
    return gap, (policy * gap).sum(-1) <= TINY * (1.0 + np.abs(gain).max((-2, -1)))[..., None]


def _tilted(policy: Array, gap: Array, x: Array) -> Array:
    """λ·π/(x + gap), normalised."""
    raw = policy / (x[..., None] + gap)
    tilted: Array = raw / raw.sum(-1, keepdims=True)
    return tilted


def _greedy(policy: Array, gap: Array) -> Array:
    """π restricted to the best actions."""
    chosen = policy * (gap == 0.0)
    greedy: Array = chosen / chosen.sum(-1, keepdims=True)
    return greedy


def _price(policy: Array, gap: Array, log_x: Array) -> tuple[Array, Array]:
    """(λ, dλ/dκ) of each state at x."""
    inverse = 1.0 / (np.exp(log_x)[..., None] + gap)
    mean, square = (policy * inverse).sum(-1), (policy * inverse**2).sum(-1)
    spread = (policy * (inverse - mean[..., None]) ** 2).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slope = np.where(spread > 1e-150, -(square / mean**2) / (spread / mean), 0.0)
    return 1.0 / mean, slope


def _reach(policy: Array, gap: Array, flat: Array, log_kappa: Array, log_x: Array) -> Array:
    """The log x of each state at which D_KL(π‖q) = κ; the smallest x if a state cannot reach κ (one action left)."""
    low, high = np.full_like(log_x, -300.0), np.full_like(log_x, 80.0)
    for _ in range(ROUNDS):
        x = np.exp(log_x)
        inverse = 1.0 / (x[..., None] + gap)
        mean = (policy * inverse).sum(-1)
        spread = (policy * (inverse - mean[..., None]) ** 2).sum(-1)
        distance = kl(policy, _tilted(policy, gap, x)) + 1e-300
        error = np.log(distance) - log_kappa[..., None]
        low, high = np.where(error > 0.0, log_x, low), np.where(error > 0.0, high, log_x)
        tilt = -x * (spread / mean) / distance  # d log KL / d log x, −2 for a large x
        moved = _newton(log_x, error, tilt, (low, high), 40.0)
        change = np.abs(np.where(flat, 0.0, moved - log_x)).max(initial=0.0)
        log_x = np.where(flat, log_x, moved)
        if change < CLOSE:
            break
    return log_x


def _newton(at: Array, error: Array, tilt: Array, bracket: tuple[Array, Array], reach: float) -> Array:
    """Newton's next point for a falling function, within `reach`; the middle of the bracket if it would leave that."""
    low, high = bracket
    with np.errstate(invalid="ignore"):
        moved = at - np.clip(error / np.where(tilt < -1e-9, tilt, -1e-9), -reach, reach)
        inside = (moved >= low) & (moved <= high)
        return np.where(inside, moved, 0.5 * (low + high))
