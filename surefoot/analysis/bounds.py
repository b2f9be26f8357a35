"""Limits of a number that are known: from its definition (a KL is at least 0), or from the rewards of its env.

An interval is widened for few seeds and does not know where scores end. No true value lies past a limit, so cutting
the interval there costs no coverage. No limit is guessed from the scores themselves: that every run so far is at 500
does not prove that none can exceed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, pi
from typing import NamedTuple

import numpy as np

from surefoot.analysis.statistics import Array

Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-inf, inf)
SLACK = 1e-6  # rounding, as in a KL of −1e-8
RETURNS = {None, "episode_return", "eval_return"}  # None: of the final evaluation
SHARES = (
    "clip_fraction", "clip_fraction_positive", "clip_fraction_negative", "effective_sample_size", "dead_units",
    "time_limit_fraction", "action_clip_fraction", "step_fraction",
)  # fmt: skip
NEVER_NEGATIVE = (
    "kl", "kl_p95", "kl_max", "full_step_kl", "ratio_p5", "ratio_p50", "ratio_p95", "ratio_max", "grad_norm",
    "gradient_noise_scale", "value_loss", "effective_rank", "episode_length", "seconds", "steps_per_second",
)  # fmt: skip
METRICS: dict[str, Bounds] = {
    **dict.fromkeys(SHARES, (0.0, 1.0)),
    **dict.fromkeys(NEVER_NEGATIVE, (0.0, inf)),
    **dict.fromkeys(("explained_variance", "explained_variance_after"), (-inf, 1.0)),
}


class Rewards(NamedTuple):
    """What an env pays: at each of at most `limit` steps, and once at the end."""

    limit: int
    least: float
    most: float
    once: float = 0.0


ENVS = {
    "CartPole-v0": Rewards(200, 0.0, 1.0),
    "CartPole-v1": Rewards(500, 0.0, 1.0),
    "Acrobot-v1": Rewards(500, -1.0, 0.0),
    "MountainCar-v0": Rewards(200, -1.0, 0.0),
    "MountainCarContinuous-v0": Rewards(999, -inf, 0.0, once=100.0),  # the size of an action is not limited
    "Pendulum-v1": Rewards(200, -(pi**2 + 0.1 * 8.0**2 + 0.001 * 2.0**2), 0.0),
    "FrozenLake-v1": Rewards(100, 0.0, 0.0, once=1.0),
    "FrozenLake8x8-v1": Rewards(200, 0.0, 0.0, once=1.0),
    "InvertedPendulum-v4": Rewards(1000, 0.0, 1.0),
    "InvertedPendulum-v5": Rewards(1000, 0.0, 1.0),
}
UNCHANGED = {"env_kwargs": "{}", "eval_env": "none", "eval_env_kwargs": "{}", "wrappers": ""}


def bounds_of(metric: str | None, env: str, settings: Mapping[str, str]) -> Bounds:
    """The limits of a metric (None: the return of the final evaluation) in a run with these settings, as text."""
    if metric not in RETURNS:
        return METRICS.get(metric or "", UNBOUNDED)
    if env not in ENVS or any(settings.get(name, usual) != usual for name, usual in UNCHANGED.items()):
        return UNBOUNDED
    rewards, limit = ENVS[env], settings.get("max_episode_steps", "none")
    steps = int(limit) if limit.isdecimal() and len(limit) < 16 else rewards.limit if limit == "none" else None
    if steps is None:  # a damaged file
        return UNBOUNDED
    return rewards.least * steps, rewards.most * steps + rewards.once


def hull(bounds: list[Bounds]) -> Bounds:
    """The limits of numbers that come from several runs."""
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else UNBOUNDED


def that_hold(bounds: Bounds, values: Array) -> Bounds:
    """The bounds, unless a value is beyond them: then they are not those of this env, and none are known."""
    low, high = bounds
    known = values[np.isfinite(values)]
    inside = not len(known) or (low - SLACK <= known.min() and known.max() <= high + SLACK)
    return bounds if inside else UNBOUNDED
