"""Monte-Carlo estimates of what `exact` computes: N trajectories of T steps, all at once.

Each function returns one unbiased estimate per trajectory (except for the cut after T steps, a factor γ^T), so the mean
is the estimate and the standard deviation over √N its error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """N episodes of one MDP. After its end an episode stays where it is, with reward 0 and `alive` False."""

    state: Array  # [N, T] int
    action: Array  # [N, T] int
    reward: Array  # [N, T]
    after: Array  # [N, T] int: the state that followed
    alive: Array  # [N, T] bool: an action was taken
    terminated: Array  # [N, T] bool: and it ended the episode


def sample(
    rng: np.random.Generator,
    mdp: MDP,
    policy: Array,
    *,
    trajectories: int,
    steps: int,
    first: tuple[Array, Array] | None = None,
) -> Trajectories:
    """Follow `policy` from the start, or from the given (states, actions) `[N]`, in a single MDP."""
    assert mdp.transition.ndim == 3, "sampling takes one MDP of a batch at a time"
    odds_of_action, odds_of_state = policy.cumsum(-1), mdp.transition.cumsum(-1)
    shape = (steps, trajectories)
    state, action, after = (np.zeros(shape, np.int64) for _ in range(3))
    reward, alive, ended = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool)
    now = _draw(rng, np.broadcast_to(mdp.start.cumsum(), (trajectories, mdp.num_states))) if first is None else first[0]
    going = ~mdp.terminal[now]
    for t in range(steps):
        choice = first[1] if first is not None and t == 0 else _draw(rng, odds_of_action[now])
        then = np.where(going, _draw(rng, odds_of_state[now, choice]), now)
        state[t], action[t], after[t], alive[t] = now, choice, then, going
        reward[t] = np.where(going, mdp.reward[now, choice, then], 0.0)
        ended[t] = going & mdp.terminal[then]
        now, going = then, going & ~mdp.terminal[then]
    return Trajectories(state.T, action.T, reward.T, after.T, alive.T, ended.T)


def _draw(rng: np.random.Generator, cumulative: Array) -> Array:
    """An index for each row of cumulative probabilities; rounding never draws past the last."""
    drawn: Array = (rng.random((len(cumulative), 1)) * cumulative[:, -1:] >= cumulative).sum(-1)
    return drawn.clip(max=cumulative.shape[1] - 1)


def _discounts(mdp: MDP, paths: Trajectories) -> Array:
    """γ^t where an action was taken. `[N, T]`."""
    powers: Array = mdp.gamma ** np.arange(paths.reward.shape[1]) * paths.alive
    return powers


def returns(mdp: MDP, paths: Trajectories) -> Array:
    """Σ_t γ^t r_t of each trajectory: η in the mean. `[N]`."""
    total: Array = (_discounts(mdp, paths) * paths.reward).sum(-1)
    return total


def visits(mdp: MDP, paths: Trajectories) -> Array:
    """Σ_t γ^t·1[s_t = s]: ρ in the mean. `[N, S]`."""
    counts = np.zeros((len(paths.state), mdp.num_states))
    rows = np.broadcast_to(np.arange(len(counts))[:, None], paths.state.shape)
    np.add.at(counts, (rows, paths.state), _discounts(mdp, paths))
    return counts


def importance_gain(mdp: MDP, paths: Trajectories, old: Array, new: Array, advantage: Array) -> Array:
    """Σ_t γ^t·(π̃/π)(a_t|s_t)·A_π(s_t, a_t): L_π(π̃) − η(π) in the mean. `[N]`."""
    ratio = (new / old)[paths.state, paths.action]
    gain: Array = (_discounts(mdp, paths) * ratio * advantage[paths.state, paths.action]).sum(-1)
    return gain


def policy_gradients(mdp: MDP, paths: Trajectories, policy: Array, baseline: Array | None = None) -> Array:
    """Σ_t γ^t·∇log π(a_t|s_t)·(R_t − b(s_t)) with R_t the discounted reward to go: ∇η in the mean. `[N, D, A]`."""
    to_go = reverse_scan(paths.reward, np.full_like(paths.reward, mdp.gamma))
    weight = _discounts(mdp, paths) * (to_go if baseline is None else to_go - baseline[paths.state])
    score = np.eye(mdp.num_actions)[paths.action] - policy[paths.state]  # ∂ log π(a|s) / ∂ logits
    gradient: Array = np.einsum("ntd,nta->nda", mdp.basis[paths.state], weight[..., None] * score)
    return gradient


def gae(mdp: MDP, paths: Trajectories, value: Array, gae_lambda: float) -> Array:
    """Â_t = Σ_l (γλ)^l δ_{t+l} with δ = r + γV(s')·¬terminated − V(s), as `surefoot.math.returns` has it. `[N, T]`."""
    ahead = np.where(paths.terminated, 0.0, value[paths.after])
    delta = np.where(paths.alive, paths.reward + mdp.gamma * ahead - value[paths.state], 0.0)
    return reverse_scan(delta, mdp.gamma * gae_lambda * ~paths.terminated)


def reverse_scan(x: Array, decay: Array) -> Array:
    """y_t = x_t + decay_t·y_{t+1} along the last axis."""
    y = x.copy()
    for t in range(x.shape[-1] - 2, -1, -1):
        y[..., t] += decay[..., t] * y[..., t + 1]
    return y
