"""The computations of the `surefoot theory` commands: plain numbers, ready for a table, JSON or a plot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from surefoot.theory import divergence, estimators, exact, gradients, prices, sampling, steps, worlds
from surefoot.theory.baselines import baseline as baseline  # a study, too
from surefoot.theory.penalty import maximise_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from surefoot.theory import results
    from surefoot.theory.config import (
        BoundConfig,
        ClipConfig,
        GaeConfig,
        PenaltyConfig,
        StepSizeConfig,
        SurrogateConfig,
        WorldConfig,
    )
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array

GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)


def world_of(config: WorldConfig) -> tuple[MDP, Array]:
    """The MDP and the parameters `[D, A]` of the policy to start from."""
    rng = np.random.default_rng(config.seed)
    if config.world == "random":
        mdp = worlds.random_mdp(rng, states=config.states, actions=config.actions, gamma=config.gamma)
        return mdp, worlds.random_parameters(rng, mdp)
    if config.world == "chain":
        mdp = worlds.chain(config.states, gamma=config.gamma)
    elif config.world == "grid":
        mdp = worlds.gridworld(config.states, gamma=config.gamma)
    else:
        return worlds.cliff(config.states, gamma=config.gamma), np.array([[0.0, -1.5]])  # a cautious policy
    return mdp, np.zeros((mdp.basis.shape[1], mdp.num_actions))


def bound(config: BoundConfig) -> results.Bound:
    """η, L and the lower bound along the natural gradient, and how small the guaranteed part is."""
    mdp, theta = world_of(config)
    old = mdp.policy(theta)
    found = _gains(mdp, theta)
    t = np.linspace(-0.25, 1.0, 301) * min(max(2.0 * found["best_step"], 3.0 * found["trusted"]), 4.0)
    near = np.linspace(-0.5, 1.5, 201) * (found["trusted"] or 1e-6)
    curves, zoom = (_curves(mdp, theta, at) for at in (t, near))
    table = maximise_bound(mdp, old)
    furthest = float(divergence.max_kl(mdp, old, table))
    return {
        **found,
        "max_advantage": float(divergence.max_advantage(mdp, old)),
        "max_kl_of_best_table": furthest if np.isfinite(furthest) else None,  # γ = 0: the greedy policy costs nothing
        "gain_of_best_table": float(exact.expected_return(mdp, table) - exact.expected_return(mdp, old)),
        "curves": curves,
        "zoom": zoom,
        "by_gamma": [_at_gamma(mdp.with_gamma(g), theta) for g in GAMMAS],
    }


def _along(mdp: MDP, theta: Array, t: Array) -> tuple[Array, Array, Array]:
    """(η, L, the bound) at θ + t·(the natural gradient, scaled to a mean KL of about ½t²)."""
    move = steps.natural_step(mdp, theta, max_kl=0.5) - theta
    old, new = mdp.policy(theta), mdp.policy(theta + t[:, None, None] * move)
    return exact.expected_return(mdp, new), exact.surrogate(mdp, old, new), divergence.lower_bound(mdp, old, new)


def _curves(mdp: MDP, theta: Array, t: Array) -> results.BoundCurves:
    eta, first, sure = _along(mdp, theta, t)
    return {
        "t": t.tolist(),
        "expected_return": eta.tolist(),
        "surrogate": first.tolist(),
        "lower_bound": sure.tolist(),
    }


def _at_gamma(mdp: MDP, theta: Array) -> results.GainsAtGamma:
    found = _gains(mdp, theta)
    return {
        "gamma": found["gamma"],
        "constant": found["constant"],
        "sure_gain": found["sure_gain"],
        "true_gain": found["true_gain"],
        "share": found["share"],
    }


def _gains(mdp: MDP, theta: Array) -> results.Gains:
    """Along the natural gradient: the best step by the bound, the truly best step, the end of the trusted region."""
    old = mdp.policy(theta)
    eta = float(exact.expected_return(mdp, old))
    far = np.concatenate([[0.0], np.geomspace(1e-6, 30.0, 1500)])
    truth, _, sure = _along(mdp, theta, far)
    best, safe = int(truth.argmax()), int(sure.argmax())
    trusted = sure >= eta
    trusted[0] = True  # π itself is trusted, whatever the rounding
    true_gain, sure_gain = float(truth[best] - eta), float(sure[safe] - eta)
    return {
        "gamma": mdp.gamma,
        "constant": float(divergence.bound_constant(mdp, old)),
        "old_return": eta,
        "trusted": float(far[np.flatnonzero(trusted)[-1]]),
        "sure_step": float(far[safe]),
        "best_step": float(far[best]),
        "sure_gain": sure_gain,
        "gain_there": float(truth[safe] - eta),
        "true_gain": true_gain,
        "share": sure_gain / true_gain if true_gain > 0.0 else 0.0,
    }


def surrogate(config: SurrogateConfig) -> results.Surrogate:
    """L touches η at π, in value and slope; their difference grows as the square of the step."""
    mdp, theta = world_of(config)
    old = mdp.policy(theta)
    slope = gradients.numerical_gradient(lambda x: exact.expected_return(mdp, mdp.policy(x)), theta)
    touching = gradients.surrogate_gradient(mdp, old, theta)
    move = steps.natural_step(mdp, theta, max_kl=0.5) - theta
    t = np.linspace(-1.5, 3.0, 301)
    small = np.geomspace(1e-4, 3.0, 60)

    def both(t: Array) -> tuple[Array, Array, Array]:
        new = mdp.policy(theta + t[:, None, None] * move)
        price = divergence.bound_constant(mdp, old) * divergence.max_kl(mdp, old, new)
        return exact.expected_return(mdp, new), exact.surrogate(mdp, old, new), price

    truth, approximation, _ = both(t)
    eta, first, price = both(small)
    gap = np.abs(eta - first)
    early = (small < 3e-2) & (gap > 1e-12 * (1.0 + np.abs(eta)))  # above rounding
    order = float(np.polyfit(np.log(small[early]), np.log(gap[early]), 1)[0]) if early.sum() > 2 else None
    return {
        "gamma": mdp.gamma,
        "old_return": float(exact.expected_return(mdp, old)),
        "value_difference": float(abs(exact.surrogate(mdp, old, old) - exact.expected_return(mdp, old))),
        "gradient_norm": float(np.linalg.norm(slope)),
        "gradient_difference": float(np.abs(slope - touching).max()),
        "order": order,
        "price_over_gap": float(np.median(price[early] / gap[early])) if early.sum() > 2 else None,
        "curves": {"t": t.tolist(), "expected_return": truth.tolist(), "surrogate": approximation.tolist()},
        "gap": {"t": small.tolist(), "gap": gap.tolist(), "price": price.tolist()},
    }


def clip(config: ClipConfig) -> results.Clip:
    """The clipped objective and its slope as functions of the ratio, for A = ±1; and a ratio that escapes anyway."""
    ratio = np.linspace(0.0, 2.0, 401)

    def objective(gain: float) -> results.Objective:
        samples = np.full_like(ratio, gain)
        return {
            "objective": gradients.clip_objective(ratio, samples, config.clip_ratio).tolist(),
            "slope": gradients.clip_slope(ratio, samples, config.clip_ratio).tolist(),
        }

    return {
        "clip_ratio": config.clip_ratio,
        "ratio": ratio.tolist(),
        "positive": objective(1.0),
        "negative": objective(-1.0),
        "escape": escape(config.clip_ratio),
    }


def escape(clip_ratio: float, learning_rate: float = 0.3, epochs: int = 10) -> results.Escape:
    """One exact PPO update on the blind cliff with a large learning rate: how far ratio and KL go in spite of clipping.

    The first step follows the plain gradient, because all ratios are 1. Nothing in the objective corrects overshoot.
    """
    mdp, theta = worlds.cliff(), np.array([[0.0, -3.0]])
    old = mdp.policy(theta)
    new = mdp.policy(steps.ppo_clip_step(mdp, theta, clip_ratio=clip_ratio, learning_rate=learning_rate, epochs=epochs))
    return {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "max_ratio": float((new / old)[mdp.live].max()),
        "max_kl": float(divergence.max_kl(mdp, old, new)),
    }


def step_size(config: StepSizeConfig) -> results.StepSize:
    """The blind cliff climbed by plain gradient ascent with several step sizes, and by TRPO and PPO."""
    mdp = worlds.cliff(config.states, gamma=config.gamma, depth=config.depth)
    start = np.array([[0.0, -3.0]])
    odds = np.linspace(-4.0, 6.0, 401)
    height = exact.expected_return(mdp, mdp.policy(np.stack([np.zeros_like(odds), odds], -1)[:, None, :]))
    summit = int(height.argmax())
    methods: dict[str, Callable[..., Array]] = {
        f"gradient α={rate:g}": partial(steps.gradient_step, mdp, learning_rate=rate) for rate in config.learning_rates
    }
    methods[f"TRPO δ={config.max_kl:g}"] = partial(steps.trpo_step, mdp, max_kl=config.max_kl)
    methods[f"PPO ε={config.clip_ratio:g}"] = partial(steps.ppo_clip_step, mdp, clip_ratio=config.clip_ratio)
    runs: list[results.Climb] = []
    for name, step in methods.items():
        path = np.stack(steps.climb(step, start, config.updates))
        climbed = exact.expected_return(mdp, mdp.policy(path))
        drops = climbed[:-1] - climbed[1:]
        runs.append(
            {
                "method": name,
                "log_odds": (path[:, 0, 1] - path[:, 0, 0]).tolist(),
                "expected_return": climbed.tolist(),
                "final": float(climbed[-1]),
                "best": float(climbed.max()),
                "worst_drop": float(max(drops.max(), 0.0)),
                "slope_at_end": float(np.abs(gradients.policy_gradient(mdp, path[-1])).max()),
            }
        )
    return {
        "gamma": config.gamma,
        "summit": float(height[summit]),
        "summit_log_odds": float(odds[summit]),
        "bottom": float(height[-1]),
        "landscape": {"log_odds": odds.tolist(), "expected_return": height.tolist()},
        "runs": runs,
    }


def penalty(config: PenaltyConfig) -> results.Penalty:
    """The price of a trust region, and PPO-penalty's β on its way there."""
    return prices.penalty(config, world_of(config))


def gae(config: GaeConfig) -> results.Gae:
    """Bias and variance of GAE(λ) against the exact advantage, by linear algebra and by sampling."""
    rng = np.random.default_rng(config.seed)
    mdp = worlds.random_mdp(rng, states=config.states, actions=config.actions, gamma=config.gamma, branching=2)
    policy = worlds.random_policy(rng, mdp)
    noise = rng.normal(size=mdp.num_states)
    value, weight = exact.state_value(mdp, policy), exact.visitation(mdp, policy)
    grid = np.linspace(0.0, 1.0, 41)
    families: list[results.Family] = []
    for error in dict.fromkeys(factor * config.critic_error for factor in (0.0, 0.5, 1.0, 2.0)):
        curve = [estimators.gae_errors(mdp, policy, value + error * noise, x, weight) for x in grid]
        bias, variance = (np.array(column) for column in zip(*curve, strict=True))
        best = int((bias + variance).argmin())
        families.append(
            {
                "critic_error": error,
                "bias_squared": bias.tolist(),
                "variance": variance.tolist(),
                "best_lambda": float(grid[best]),
                "error_at_best": float(np.sqrt(bias + variance)[best]),
            }
        )
    return {
        "gamma": config.gamma,
        "critic_error": config.critic_error,
        "gae_lambda": grid.tolist(),
        "families": families,
        "sampled": _sampled_gae(rng, mdp, policy, value + config.critic_error * noise, config.trajectories),
    }


def _sampled_gae(
    rng: np.random.Generator, mdp: MDP, policy: Array, value: Array, trajectories: int
) -> list[results.SampledGae]:
    """The same two numbers from trajectories whose first (s, a) are drawn by how often they are visited."""
    weight, truth = exact.visitation(mdp, policy), exact.advantage(mdp, policy)
    share = (weight[:, None] * policy / weight.sum()).ravel()
    each = rng.multinomial(trajectories, share / share.sum())
    states, actions = np.divmod(np.repeat(np.arange(share.size), each), mdp.num_actions)
    steps_ = int(np.ceil(np.log(1e-4) / np.log(max(mdp.gamma, 1e-4)))) + 1
    paths = sampling.sample(rng, mdp, policy, trajectories=trajectories, steps=steps_, first=(states, actions))
    cells, size = states * mdp.num_actions + actions, share.size
    found: list[results.SampledGae] = []
    for gae_lambda in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        error = sampling.gae(mdp, paths, value, gae_lambda)[:, 0] - truth[states, actions]
        count = np.bincount(cells, minlength=size).clip(min=1)
        mean = np.bincount(cells, error, size) / count
        variance = (np.bincount(cells, error**2, size) - count * mean**2) / (count - 1).clip(min=1)
        mean, variance, uncertain = (x.reshape(policy.shape) for x in (mean, variance, variance / count))
        centred = mean - (policy * mean).sum(-1, keepdims=True)
        # The square of an estimated mean overestimates by the variance of that mean.
        excess = uncertain * (1.0 - 2.0 * policy) + (policy**2 * uncertain).sum(-1, keepdims=True)
        part = share.reshape(policy.shape)
        found.append(
            {
                "gae_lambda": gae_lambda,
                "bias_squared": float(max((part * (centred**2 - excess)).sum(), 0.0)),
                "variance": float((part * variance).sum()),
            }
        )
    return found
