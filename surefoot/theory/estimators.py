"""GAE's bias and variance, exactly, for any critic.

With c = γλ, the estimator of a (state, action) is X = δ + c·X', where X' belongs to the state that follows and an
action drawn from π. Its first two moments solve linear systems, so nothing needs to be sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory.exact import advantage, chain_of

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def gae_moments(mdp: MDP, policy: Array, value: Array, gae_lambda: float) -> tuple[Array, Array]:
    """(E[Â | s, a], Var[Â | s, a]) under the critic `value`, over infinite horizons. `[..., S, A]` each."""
    decay = mdp.gamma * gae_lambda
    ahead = mdp.gamma * np.where(mdp.terminal, 0.0, value)
    delta = (mdp.reward + ahead[..., None, None, :] - value[..., None, None]) * mdp.live[:, None, None]
    moves, chain = mdp.transition * mdp.live[:, None, None], chain_of(mdp, policy)

    def solve(x: Array, rate: float) -> Array:
        """The mean over π of the solution of y = x + rate·P y_π. `[..., S]`."""
        mean = (policy * x).sum(-1)
        solved: Array = np.linalg.solve(np.eye(mdp.num_states) - rate * chain, mean[..., None])[..., 0]
        return solved

    first = (moves * delta).sum(-1)
    follow = np.where(mdp.terminal, 0.0, solve(first, decay))  # E[X'] of each next state
    mean = first + decay * (moves * follow[..., None, None, :]).sum(-1)
    # X² = δ² + 2cδX' + c²X'²
    own = (moves * (delta**2 + 2.0 * decay * delta * follow[..., None, None, :])).sum(-1)
    square = np.where(mdp.terminal, 0.0, solve(own, decay**2))
    second = own + decay**2 * (moves * square[..., None, None, :]).sum(-1)
    return mean, np.maximum(second - mean**2, 0.0)


def gae_errors(mdp: MDP, policy: Array, value: Array, gae_lambda: float, weight: Array) -> tuple[Array, Array]:
    """(mean squared bias, mean variance) against the exact A_π, over states by `weight` and actions by π. `[...]`.

    A bias that is the same for all actions of a state is a baseline: it does not affect the policy gradient, so it is
    not counted. The rest vanishes at λ = 1 for every critic (GAE(1) is the return minus V̂), and for every λ if V̂ = V.
    """
    mean, variance = gae_moments(mdp, policy, value, gae_lambda)
    share = weight[..., None] * policy / weight.sum(-1)[..., None, None]
    bias = mean - advantage(mdp, policy)
    centred = bias - (policy * bias).sum(-1, keepdims=True)
    return (share * centred**2).sum((-2, -1)), (share * variance).sum((-2, -1))
