"""How far chance alone could move a number: 95 % intervals over seeds, and how many seeds would settle a question.

The percentile bootstrap of `rliable` is here as `percentile_interval`. With few seeds it is too narrow: for three
seeds of one task it is [min, max] at most, which holds the true mean in 75 % of all experiments, not 95 %. So
`interval`, the one that is shown, widens it as Student's t widens a normal interval. `benchmarks/coverage.py` measures
how often each of them holds the truth, and docs/compare.md says where even the wider one does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from surefoot.analysis.statistics import Array, Statistic, Tasks, probability_of_improvement

Picks = NDArray[np.int64]  # [resamples, runs]: which run is drawn
RESAMPLES = 5_000
Z = 1.959963984540054  # normal quantile at 97.5 %
Z_POWER = 0.8416212335729143  # and at 80 %


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval. Without an interval (one seed): `low` and `high` are NaN."""

    value: float
    low: float = math.nan
    high: float = math.nan


def resample(tasks: Tasks, rng: np.random.Generator, resamples: int = RESAMPLES) -> list[Picks]:
    """Stratified: the runs of every task are drawn anew, with replacement, from the runs of that task."""
    return [rng.integers(len(scores), size=(resamples, len(scores))) for scores in tasks]


def bootstrap(tasks: Tasks, statistic: Statistic, picks: list[Picks]) -> Array:
    """The statistic of every resample: [resamples, …]."""
    return statistic([scores[chosen] for scores, chosen in zip(tasks, picks, strict=True)])


def percentile_interval(values: Array, level: float = 0.95) -> tuple[Array, Array]:
    """The range of the middle `level` of the bootstrapped values: the interval of `rliable`."""
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(values, [tail, 100.0 - tail], axis=0)
    return low, high


def interval(
    tasks: Tasks,
    statistic: Statistic,
    seed: int = 0,
    resamples: int = RESAMPLES,
    bounds: Sequence[tuple[float, float]] | None = None,
) -> Estimate:
    """The statistic with its 95 % interval: the percentile bootstrap, widened for few seeds (see `widening`).

    low  = T − k·(T − q_2.5),   high = T + k·(q_97.5 − T)

    A statistic on the edge of what the resamples show (T outside of [q_2.5, q_97.5]) keeps that edge. `bounds`: of the
    scores of each task, as far as they are known; the interval is cut at what the statistic is of scores at the bounds.
    """
    value = float(statistic(tasks))
    if min(len(scores) for scores in tasks) < 2:
        return Estimate(value)
    values = bootstrap(tasks, statistic, resample(tasks, np.random.default_rng(seed), resamples))
    low, high = percentile_interval(values)
    factor = widening(tasks)
    least, most = limits(tasks, statistic, bounds)
    wide_low, wide_high = (value + factor * (float(edge) - value) for edge in (low, high))
    return Estimate(value, min(value, max(wide_low, least)), max(value, min(wide_high, most)))


def limits(
    tasks: Tasks, statistic: Statistic, bounds: Sequence[tuple[float, float]] | None = None
) -> tuple[float, float]:
    """The lowest and highest value of a monotone statistic whose scores stay within bounds (None: any scores)."""
    known = [(-math.inf, math.inf)] * len(tasks) if bounds is None else bounds
    ends = [
        float(statistic([np.full(scores.shape[-1], edge) for scores, edge in zip(tasks, side, strict=True)]))
        for side in zip(*known, strict=True)
    ]
    return min(ends), max(ends)


def widening(tasks: Tasks) -> float:
    """How much wider than a percentile bootstrap an interval over so few seeds has to be; near 1 for many seeds.

    k = t_ν / z · sqrt(Σ v_m / Σ v_m (n_m − 1)/n_m)   with v_m = s²_m / n_m

    Two corrections. A resample of n runs varies by (n−1)/n of the unbiased variance. And the variance itself is only
    estimated, with Welch and Satterthwaite's ν = (Σ v_m)² / Σ v_m²/(n_m − 1) degrees of freedom.
    """
    counts = np.array([len(scores) for scores in tasks], np.float64)
    parts = np.array([scores.var(ddof=1) for scores in tasks]) / counts
    if not parts.sum() > 0.0:
        parts = 1.0 / counts  # all runs of each task are equal: then only their numbers count
    freedom = parts.sum() ** 2 / (parts**2 / (counts - 1.0)).sum()
    shrunk = parts.sum() / (parts * (counts - 1.0) / counts).sum()
    return float(student_quantile(freedom) / Z * math.sqrt(shrunk))


@cache
def _gauss() -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(80)


def student_quantile(freedom: float, probability: float = 0.975) -> float:
    """Quantile of Student's t with any positive number of degrees of freedom ν.

    With t = √ν·tan θ the density is cos^{ν−1} θ: smooth and bounded, so Gauss-Legendre is exact to rounding. θ is found
    by bisection.
    """
    nodes, weights = _gauss()
    constant = math.exp(math.lgamma((freedom + 1.0) / 2.0) - math.lgamma(freedom / 2.0)) / math.sqrt(math.pi)

    def beyond_middle(angle: float) -> float:
        return float(constant * angle / 2.0 * (weights * np.cos(angle / 2.0 * (nodes + 1.0)) ** (freedom - 1.0)).sum())

    low, high = 0.0, math.pi / 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if beyond_middle(middle) < probability - 0.5 else (low, middle)
    return math.sqrt(freedom) * math.tan((low + high) / 2.0)


def improvement_interval(better: Tasks, worse: Tasks) -> Estimate:
    """P(X > Y) averaged over tasks, with Newcombe's (2006) score interval, continuity-corrected.

    All θ with |θ̂ − θ| − c ≤ z·sqrt(V(θ)), where the variance is the one that the tested θ would have:
    V(θ) = 1/M² Σ_m θ(1−θ)/(n·k) · [1 + (N−1)·((1−θ)/(2−θ) + θ/(1+θ))],   N = (n + k)/2
    and c = 1/(2M) · mean(1/(n·k)) is half the distance between two possible values of θ̂. At θ = 1/2 this is Mann and
    Whitney's test: the interval leaves out 1/2 where the test rejects.

    A bootstrap says [1, 1] as soon as every run of X beats every run of Y, even with three seeds each; two equal
    methods do that, one way or the other, once in ten experiments. This interval stays wide there.
    """
    value = float(probability_of_improvement(better, worse))
    pairs = [(len(x), len(y)) for x, y in zip(better, worse, strict=True)]
    if min(map(min, pairs)) < 2:
        return Estimate(value)

    def fits(theta: float) -> bool:
        return abs(value - theta) - _half_step(pairs) <= Z * math.sqrt(_improvement_variance(theta, pairs))

    return Estimate(value, _edge(fits, value, 0.0), _edge(fits, value, 1.0))


def is_settled(improvement: Estimate) -> bool:
    """Whether the interval leaves out 1/2: one of the two is better, at the 95 % level."""
    return improvement.low > 0.5 or improvement.high < 0.5


def seeds_needed(improvement: float, tasks: int = 1, most: int = 10_000) -> int | None:
    """Seeds per method and task that settle with a chance of 80 % which is better, if P(X > Y) is as it looks now.

    The smallest n with |P − 1/2| − c ≥ z_97.5·sqrt(V(1/2)) + z_80·sqrt(V(P)), with c and V of `improvement_interval`.
    None: more than `most`, as for two methods that look equal. The observed P is itself a guess from few seeds, so this
    is an order of magnitude, not a promise.
    """
    distance = abs(improvement - 0.5)

    def enough(n: int) -> bool:
        pairs = [(n, n)] * tasks
        doubt = Z * math.sqrt(_improvement_variance(0.5, pairs))
        return distance - _half_step(pairs) >= doubt + Z_POWER * math.sqrt(_improvement_variance(improvement, pairs))

    if not enough(most):
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _improvement_variance(theta: float, pairs: list[tuple[int, int]]) -> float:
    total = 0.0
    for n, k in pairs:
        more = ((n + k) / 2.0 - 1.0) * ((1.0 - theta) / (2.0 - theta) + theta / (1.0 + theta))
        total += theta * (1.0 - theta) / (n * k) * (1.0 + more)
    return total / len(pairs) ** 2


def _half_step(pairs: list[tuple[int, int]]) -> float:
    return sum(1.0 / (n * k) for n, k in pairs) / (2.0 * len(pairs) ** 2)


def _edge(fits: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where `fits` ends on the way from a value that fits to one that may not."""
    if fits(outside):
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def share_interval(share: Array, runs: int) -> tuple[Array, Array]:
    """Wilson's 95 % interval of a share of `runs` runs; unlike a bootstrap it has a width at 0 and 1."""
    scale = 1.0 + Z**2 / runs
    middle = (share + Z**2 / (2.0 * runs)) / scale
    half = Z / scale * np.sqrt(share * (1.0 - share) / runs + Z**2 / (4.0 * runs**2))
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)
