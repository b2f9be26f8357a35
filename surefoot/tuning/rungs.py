"""Successive halving for noisy returns: few steps for many trials, more steps and seeds for the best of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from surefoot.analysis.intervals import student_quantile

FACTOR = 3  # a rung keeps one trial of so many, and trains it for so many times the steps
RUNGS = 3
PRIOR = 4.0  # how many seeds' worth of the other trials' spread counts in the spread of one


@dataclass(frozen=True)
class Rung:
    """What a trial is tested with: runs of so many steps with these seeds, which no other rung uses."""

    number: int
    steps: int
    seeds: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Steps per trial."""
        return self.steps * len(self.seeds)


def make_rungs(total_steps: int, seeds: int, first_seed: int) -> tuple[Rung, ...]:
    """The last rung has all the steps. Each has one seed more than the one before, and seeds of its own.

    Seeds of its own, because a trial that was lucky with some seeds was chosen for that luck.
    """
    rungs: list[Rung] = []
    for number in range(RUNGS):
        steps = math.ceil(total_steps / FACTOR ** (RUNGS - 1 - number))
        own = tuple(range(first_seed, first_seed + seeds + number))
        rungs.append(Rung(number, steps, own))
        first_seed += len(own)
    return tuple(rungs)


def first_rung(round_number: int) -> int:
    """Where a round begins: in turn on every rung, as in Hyperband (Li et al. 2018). Short runs favour what learns fast
    and may be lost later; rounds that begin with long ones do not, but can try fewer trials.
    """
    return round_number % RUNGS


def round_size(first: int) -> int:
    """Trials of a round that begins on this rung: for all of them, rounds take about the same time."""
    above = RUNGS - 1 - first
    share: int = FACTOR**above
    return math.ceil(RUNGS * share / (above + 1))


def survivors(number: int, climbed: int) -> int:
    """How many of so many trials climb so many rungs."""
    share: int = FACTOR**climbed
    return math.ceil(number / share)


def round_cost(trials: int, rungs: Sequence[Rung]) -> int:
    """Steps of a round that begins with so many trials on the first of these rungs."""
    return sum(survivors(trials, climbed) * rung.cost for climbed, rung in enumerate(rungs))


def lower_ends(scores: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """By trial: the lower end of the 95 % interval of its mean return.

    mean − t_ν · s̃/√n   with   s̃² = (p·s₀² + (n−1)·s²) / (p + n − 1)   and   ν = p + n − 1

    With three seeds, a trial's own spread s is mostly chance: its interval says more about that than about the trial.
    So its variance is drawn towards s₀², the median over all trials of the rung, as if that were p more seeds.
    """
    found = {trial: np.asarray(values, np.float64) for trial, values in scores.items()}
    spreads = [float(values.var(ddof=1)) for values in found.values() if len(values) > 1]
    usual = float(np.median(spreads)) if spreads else 0.0
    ends = {}
    for trial, values in found.items():
        more = len(values) - 1
        own = float(values.var(ddof=1)) if more else usual
        variance = (PRIOR * usual + more * own) / (PRIOR + more)
        ends[trial] = float(values.mean()) - _quantile(PRIOR + more) * math.sqrt(variance / len(values))
    return ends


@cache
def _quantile(freedom: float) -> float:
    return student_quantile(freedom)


def best(scores: Mapping[int, Sequence[float]], number: int) -> list[int]:
    """The trials with the highest lower ends, best first; of equal ones, the earlier trial."""
    ends = lower_ends(scores)
    return sorted(ends, key=lambda trial: (-ends[trial], trial))[:number]
