"""Every expectation of the lecture as linear algebra: V, Q, A, ρ, η, and one policy's gain over another.

Shapes: `[..., S, A]` for a policy and for Q and A, `[..., S]` for V and ρ, `[...]` for η.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def chain_of(mdp: MDP, policy: Array) -> Array:
    """P_π(s'|s) = Σ_a π(a|s)·P(s'|s, a), without moves into or out of terminal states. `[..., S, S]`."""
    moves: Array = np.einsum("...sa,...sat->...st", policy, mdp.onward)
    return moves


def state_value(mdp: MDP, policy: Array) -> Array:
    """V_π = (I − γP_π)⁻¹ r_π. `[..., S]`."""
    reward = (policy * mdp.expected_reward).sum(-1)
    system = np.eye(mdp.num_states) - mdp.gamma * chain_of(mdp, policy)
    value: Array = np.linalg.solve(system, reward[..., None])[..., 0]
    return value


def action_value(mdp: MDP, policy: Array, value: Array | None = None) -> Array:
    """Q_π(s, a) = r(s, a) + γ·Σ_s' P(s'|s, a)·V_π(s'). `[..., S, A]`. `value`: another V, such as a critic's."""
    value = state_value(mdp, policy) if value is None else value
    q: Array = mdp.expected_reward + mdp.gamma * np.einsum("...sat,...t->...sa", mdp.onward, value)
    return q


def advantage(mdp: MDP, policy: Array) -> Array:
    """A_π(s, a) = Q_π(s, a) − V_π(s); 0 in terminal states. `[..., S, A]`."""
    value = state_value(mdp, policy)
    return action_value(mdp, policy, value) - value[..., None]


def visitation(mdp: MDP, policy: Array) -> Array:
    """ρ_π(s) = Σ_t γ^t·P(s_t = s) over the states in which an action is taken: (I − γP_πᵀ)⁻¹ μ. `[..., S]`.

    It sums to 1/(1−γ) if no episode ends, and to less if some do.
    """
    system = np.eye(mdp.num_states) - mdp.gamma * np.swapaxes(chain_of(mdp, policy), -1, -2)
    rho: Array = np.linalg.solve(system, np.broadcast_to(mdp.start, policy.shape[:-1])[..., None])[..., 0]
    return rho


def expected_return(mdp: MDP, policy: Array) -> Array:
    """η(π) = E[Σ_t γ^t r_t] = Σ_s μ(s)·V_π(s). `[...]`."""
    eta: Array = (mdp.start * state_value(mdp, policy)).sum(-1)
    return eta


def expected_gain(rho: Array, policy: Array, advantage_: Array) -> Array:
    """Σ_s ρ(s)·Σ_a π(a|s)·A(s, a): the term that both the identity and the surrogate add to η. `[...]`."""
    gain: Array = (rho * (policy * advantage_).sum(-1)).sum(-1)
    return gain


def performance_difference(mdp: MDP, old: Array, new: Array) -> Array:
    """η(π̃) − η(π) = Σ_s ρ_π̃(s)·Σ_a π̃(a|s)·A_π(s, a), exactly (Kakade & Langford 2002). `[...]`."""
    return expected_gain(visitation(mdp, new), new, advantage(mdp, old))


def surrogate(mdp: MDP, old: Array, new: Array) -> Array:
    """L_π(π̃) = η(π) + Σ_s ρ_π(s)·Σ_a π̃(a|s)·A_π(s, a): the states are still the old policy's. `[...]`."""
    return expected_return(mdp, old) + expected_gain(visitation(mdp, old), new, advantage(mdp, old))


def episode_return(mdp: MDP, policy: Array, steps: int) -> Array:
    """The undiscounted return of an episode that is cut after `steps`, which an evaluation estimates. `[...]`."""
    reward, moves = (policy * mdp.expected_reward).sum(-1), chain_of(mdp, policy)
    value = np.zeros_like(reward)
    for _ in range(steps):
        value = reward + (moves @ value[..., None])[..., 0]
    total: Array = (mdp.start * value).sum(-1)
    return total
