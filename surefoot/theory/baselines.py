"""The variance of the policy gradient with any baseline, exactly.

One trajectory gives G = Σ_t γ^t·∇log π(a_t|s_t)·(R_t − b(s_t)) with R_t = r_t + γ·R_{t+1}. From a state on, and with
x = ∇log π(a|s) and primes for what follows,

    R = r + γR',    G = x·(R − b) + γG'

so E[R], E[R²], E[G], E[R·G] and E[‖G‖²] solve linear systems, one after the other. E[G] is ∇η whatever b is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory import exact, gradients, sampling, worlds
from surefoot.theory.exact import chain_of

if TYPE_CHECKING:
    from surefoot.theory import results
    from surefoot.theory.config import BaselineConfig
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array


def gradient_moments(mdp: MDP, policy: Array, baseline: Array) -> tuple[Array, float]:
    """(E[G] `[D, A]`, Σ_i Var[G_i]) of one trajectory of a single MDP, over an infinite horizon. `baseline`: `[S]`."""
    gamma, shape = mdp.gamma, policy.shape
    odds = policy[..., None] * mdp.transition * mdp.live[:, None, None]  # [S, A, S] of (a, s') in s
    onward = np.where(mdp.terminal, 0.0, 1.0)  # nothing follows a terminal state

    def solve(own: Array, rate: float) -> Array:
        """y(s) = own(s) + rate·E[y(s')]. `[S, …]`."""
        solved: Array = np.linalg.solve(np.eye(mdp.num_states) - rate * chain_of(mdp, policy), own)
        return solved

    def mean(of: Array) -> Array:
        """E over a and s' of something about (s, a, s'). `[S]`."""
        average: Array = (odds * of).sum((-2, -1))
        return average

    score = _scores(mdp, policy)  # [S, A, D·A]
    value = solve(mean(mdp.reward), gamma)
    total = mdp.reward + gamma * onward * value  # E[R | s, a, s']
    square = solve(mean(mdp.reward**2 + 2.0 * gamma * mdp.reward * onward * value), gamma**2)
    total_square = mdp.reward**2 + gamma * onward * (2.0 * mdp.reward * value + gamma * square)  # E[R² | s, a, s']
    b = baseline[:, None, None]

    def scored(weight: Array) -> Array:
        """E[x·weight(s, a, s')]. `[S, D·A]`."""
        weighted: Array = np.einsum("sat,sat,sad->sd", odds, weight, score)
        return weighted

    slope = solve(scored(total - b), gamma)  # E[G]
    ahead = onward[:, None] * slope
    joint_own = scored(total_square - b * total) + gamma * np.einsum("sat,sat,td->sd", odds, mdp.reward, ahead)
    joint = onward[:, None] * solve(joint_own, gamma**2)  # E[R·G]
    size = (score**2).sum(-1)[..., None]
    crossed = np.einsum("sad,td->sat", score, ahead) * (mdp.reward - b) + gamma * np.einsum("sad,td->sat", score, joint)
    norm = solve(mean(size * (total_square - 2.0 * b * total + b**2) + 2.0 * gamma * crossed), gamma**2)
    gradient = mdp.start @ slope
    return gradient.reshape(-1, shape[1]), float(max(mdp.start @ norm - gradient @ gradient, 0.0))


def _scores(mdp: MDP, policy: Array) -> Array:
    """∂ log π(a|s) / ∂θ = φ(s) ⊗ (e_a − π(·|s)). `[S, A, D·A]`."""
    inner = np.eye(mdp.num_actions) - policy[:, None, :]
    outer: Array = np.einsum("sd,sab->sadb", mdp.basis, inner).reshape(*policy.shape, -1)
    return outer


def least_variance(mdp: MDP, policy: Array) -> Array:
    """b*(s) = E_a[‖∇log π‖²·Q] / E_a[‖∇log π‖²]: V with actions weighted by the size of their gradient. `[S]`.

    It minimises the variance of each step on its own, and thus the whole variance of a bandit.
    """
    weight = policy * (_scores(mdp, policy) ** 2).sum(-1)
    best: Array = (weight * exact.action_value(mdp, policy)).sum(-1) / weight.sum(-1)
    return best


def baseline(config: BaselineConfig) -> results.Baseline:
    """The variance of REINFORCE's gradient without a baseline, and with several."""
    rng = np.random.default_rng(config.seed)
    plain = worlds.random_mdp(rng, states=config.states, actions=config.actions, gamma=config.gamma, branching=2)
    theta = worlds.random_parameters(rng, plain)
    policy, noise = plain.policy(theta), rng.normal(size=plain.num_states)
    mdp = plain.with_reward(plain.reward + config.reward_offset)
    truth = gradients.policy_gradient(mdp, theta)
    length = float(np.linalg.norm(truth))
    steps = int(np.ceil(np.log(1e-5) / np.log(max(mdp.gamma, 1e-5)))) + 1
    paths = sampling.sample(rng, mdp, policy, trajectories=config.trajectories, steps=steps)
    found: list[results.Weighted] = []
    for name, b in _baselines(mdp, policy, config.critic_error * noise).items():
        mean, variance = gradient_moments(mdp, policy, b)
        sampled = sampling.policy_gradients(mdp, paths, policy, b)
        found.append(
            {
                "baseline": name,
                "variance": variance,
                "sampled": float(sampled.var(0, ddof=1).sum()),
                "bias": float(np.abs(mean - truth).max()),
                "episodes": variance / length**2,
            }
        )
    return {
        "gamma": config.gamma,
        "reward_offset": config.reward_offset,
        "gradient_norm": length,
        "estimators": found,
        "offsets": _offsets(plain, policy),
    }


def _baselines(mdp: MDP, policy: Array, error: Array) -> dict[str, Array]:
    """The baselines of the study, by name. `[S]` each."""
    value = exact.state_value(mdp, policy)
    constant = (gradients.weights(mdp, policy) * value).sum()
    return {
        "none: REINFORCE": np.zeros_like(value),
        "a constant: the mean of V": np.full_like(value, constant),
        "V(s) + error: a real critic": value + error,
        "V(s): a perfect critic": value,
        "b*(s): least variance of a step": least_variance(mdp, policy),
    }


def _offsets(mdp: MDP, policy: Array) -> results.Offset:
    offsets = np.linspace(-3.0, 3.0, 41)
    without, with_value = [], []
    for offset in offsets:
        moved = mdp.with_reward(mdp.reward + offset)
        without.append(gradient_moments(moved, policy, np.zeros(mdp.num_states))[1])
        with_value.append(gradient_moments(moved, policy, exact.state_value(moved, policy))[1])
    return {"reward_offset": offsets.tolist(), "without": without, "with_value": with_value}
