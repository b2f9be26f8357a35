"""One exact update of each algorithm, θ → θ: what it would do with infinitely many samples.

Parameters are `[..., D, A]`, so a batch of MDPs can be updated at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory.divergence import mean_kl
from surefoot.theory.exact import advantage, expected_gain
from surefoot.theory.gradients import (
    clipped_gradient,
    fisher,
    natural_gradient,
    penalised_gradient,
    policy_gradient,
    weights,
)

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def gradient_step(mdp: MDP, parameters: Array, *, learning_rate: float) -> Array:
    """θ + α·∇η(θ)."""
    return parameters + learning_rate * policy_gradient(mdp, parameters)


def natural_step(mdp: MDP, parameters: Array, *, max_kl: float) -> Array:
    """θ + √(2δ / xᵀFx)·x with F x = ∇L: as far as the quadratic model of the mean KL allows."""
    return parameters + _natural_move(mdp, parameters, max_kl)


def trpo_step(mdp: MDP, parameters: Array, *, max_kl: float, factor: float = 0.8, tries: int = 10) -> Array:
    """The natural step, shortened until the mean KL is within δ and the surrogate has improved; else θ itself."""
    old, move = mdp.policy(parameters), _natural_move(mdp, parameters, max_kl)
    share, gain = weights(mdp, old), advantage(mdp, old)
    result, open_ = parameters.copy(), np.ones(parameters.shape[:-2], dtype=bool)
    for k in range(tries):
        tried = parameters + factor**k * move
        new = mdp.policy(tried)
        good = open_ & (mean_kl(mdp, old, new) <= max_kl) & (expected_gain(share, new, gain) > 0.0)
        result = np.where(good[..., None, None], tried, result)
        open_ &= ~good
        if not open_.any():
            break
    return result


def ppo_clip_step(
    mdp: MDP, parameters: Array, *, clip_ratio: float = 0.2, learning_rate: float = 0.03, epochs: int = 10
) -> Array:
    """`epochs` steps of Adam up the clipped surrogate of the old policy."""
    old = mdp.policy(parameters)
    return _adam(lambda theta: clipped_gradient(mdp, old, theta, clip_ratio), parameters, learning_rate, epochs)


def ppo_penalty_step(
    mdp: MDP, parameters: Array, *, kl_coef: float = 1.0, learning_rate: float = 0.03, epochs: int = 10
) -> Array:
    """`epochs` steps of Adam up the surrogate less β times the mean KL."""
    old = mdp.policy(parameters)
    return _adam(lambda theta: penalised_gradient(mdp, old, theta, kl_coef), parameters, learning_rate, epochs)


def climb(step: Callable[[Array], Array], parameters: Array, updates: int) -> list[Array]:
    """θ_0, …, θ_updates under repeated steps."""
    path = [parameters]
    for _ in range(updates):
        path.append(step(path[-1]))
    return path


def _natural_move(mdp: MDP, parameters: Array, max_kl: float) -> Array:
    x = natural_gradient(mdp, parameters)
    flat = x.reshape(*x.shape[:-2], -1)
    curvature = np.einsum("...i,...ij,...j->...", flat, fisher(mdp, parameters), flat)
    scale = np.sqrt(2.0 * max_kl / np.where(curvature > 0.0, curvature, np.inf))
    move: Array = scale[..., None, None] * x
    return move


def _adam(gradient: Callable[[Array], Array], parameters: Array, rate: float, steps: int) -> Array:
    """Ascent by Adam with the library's ε = 1e-5."""
    first, second = np.zeros_like(parameters), np.zeros_like(parameters)
    for t in range(1, steps + 1):
        slope = gradient(parameters)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        parameters = parameters + rate * (first / (1.0 - 0.9**t)) / (np.sqrt(second / (1.0 - 0.999**t)) + 1e-5)
    return parameters
