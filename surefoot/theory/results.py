"""The numbers of each study, as they are printed, drawn and written as JSON."""

from __future__ import annotations

from typing import TypedDict


class Gains(TypedDict):
    """The gain that the bound guarantees along the natural gradient, and the true gain."""

    gamma: float
    constant: float
    old_return: float
    trusted: float
    sure_step: float
    best_step: float
    sure_gain: float
    gain_there: float
    true_gain: float
    share: float


class GainsAtGamma(TypedDict):
    gamma: float
    constant: float
    true_gain: float
    sure_gain: float
    share: float


class Curves(TypedDict):
    t: list[float]
    expected_return: list[float]
    surrogate: list[float]


class BoundCurves(Curves):
    lower_bound: list[float]


class Bound(Gains):
    max_advantage: float
    max_kl_of_best_table: float | None
    gain_of_best_table: float
    curves: BoundCurves
    zoom: BoundCurves
    by_gamma: list[GainsAtGamma]


class Gap(TypedDict):
    t: list[float]
    gap: list[float]
    price: list[float]


class Surrogate(TypedDict):
    gamma: float
    old_return: float
    value_difference: float
    gradient_norm: float
    gradient_difference: float
    order: float | None
    price_over_gap: float | None
    curves: Curves
    gap: Gap


class Objective(TypedDict):
    objective: list[float]
    slope: list[float]


class Escape(TypedDict):
    learning_rate: float
    epochs: int
    max_ratio: float
    max_kl: float


class Clip(TypedDict):
    clip_ratio: float
    ratio: list[float]
    positive: Objective
    negative: Objective
    escape: Escape


class Landscape(TypedDict):
    log_odds: list[float]
    expected_return: list[float]


class Climb(Landscape):
    method: str
    final: float
    best: float
    worst_drop: float
    slope_at_end: float


class StepSize(TypedDict):
    gamma: float
    summit: float
    summit_log_odds: float
    bottom: float
    landscape: Landscape
    runs: list[Climb]


class Family(TypedDict):
    """GAE with one critic, over a grid of λ."""

    critic_error: float
    bias_squared: list[float]
    variance: list[float]
    best_lambda: float
    error_at_best: float


class SampledGae(TypedDict):
    gae_lambda: float
    bias_squared: float
    variance: float


class Gae(TypedDict):
    gamma: float
    critic_error: float
    gae_lambda: list[float]
    families: list[Family]
    sampled: list[SampledGae]


class Weighted(TypedDict):
    """The policy gradient with one baseline: Σ over its components of the variance, exact and sampled."""

    baseline: str
    variance: float
    sampled: float
    bias: float  # largest difference between the estimator's exact mean and ∇η
    episodes: float  # to average until the noise is as large as the gradient


class Offset(TypedDict):
    """Variance against a constant that is added to every reward."""

    reward_offset: list[float]
    without: list[float]
    with_value: list[float]


class Baseline(TypedDict):
    gamma: float
    reward_offset: float
    gradient_norm: float
    estimators: list[Weighted]
    offsets: Offset


class PriceCurve(TypedDict):
    kl_coef: list[float]
    kl: list[float]


class Feedback(TypedDict):
    """PPO-penalty's rule from one β on."""

    start: float
    kl_coef: list[float]
    kl: list[float]
    found_after: int | None  # updates until β is within a factor of two of the price
    settled: bool  # whether β stays
    alternates: bool  # whether it doubles and halves in turn


class Penalty(TypedDict):
    gamma: float
    target_kl: float
    price: float
    small_step_price: float
    curve: PriceCurve
    runs: list[Feedback]
