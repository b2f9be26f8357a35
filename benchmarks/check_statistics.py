"""Writes down what `rliable` and scipy say about fixed scores, for the tests to hold surefoot's statistics against.

    FOLDER/rliable/bin/python benchmarks/check_statistics.py --out tests/analysis/reference.json

Runs in an environment of its own, which `sh benchmarks/make_peers.sh FOLDER` makes: `rliable` needs pandas below 3. It
does not import surefoot; the numbers in the file are the peers' alone. Resamples are those of NumPy's frozen
`RandomState`, which both sides can draw again, so that bootstrap intervals agree to rounding and not only on average.
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import scipy.stats
from rliable import library, metrics

RESAMPLES, SEED = 300, 7


def cases() -> dict[str, np.ndarray]:
    """Scores [runs, tasks]: odd and even numbers of runs, ties, skew, one task and several."""
    rng = np.random.default_rng(2026)
    return {
        "normal 5x4": rng.normal(0.5, 0.2, (5, 4)),
        "normal 10x1": rng.normal(0.5, 0.2, (10, 1)),
        "skewed 3x6": rng.exponential(0.5, (3, 6)),
        "ties 7x3": rng.integers(0, 4, (7, 3)) / 4.0,
        "two modes 20x2": np.where(rng.random((20, 2)) < 0.7, 1.0, 0.1) + 0.05 * rng.normal(size=(20, 2)),
    }


def interval(scores, function):
    np.random.seed(SEED)  # rliable draws from NumPy's global generator
    _, found = library.get_interval_estimates({"x": scores}, function, reps=RESAMPLES)
    return found["x"].tolist()


def aggregates(scores: np.ndarray) -> dict:
    functions = {
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "iqm": metrics.aggregate_iqm,
        "optimality_gap": metrics.aggregate_optimality_gap,
    }
    taus = [0.0, 0.25, 0.5, 0.75, 1.0]
    np.random.seed(SEED)
    profiles, bands = library.create_performance_profile({"x": scores}, taus, reps=RESAMPLES)
    return {
        "scores": scores.tolist(),
        "value": {name: float(function(scores)) for name, function in functions.items()},
        "interval": {
            name: interval(scores, lambda x, function=function: np.array([function(x)]))
            for name, function in functions.items()
        },
        "scipy_iqm": float(scipy.stats.trim_mean(scores, 0.25, axis=None)),
        "taus": taus,
        "profile": profiles["x"].tolist(),
        "profile_interval": bands["x"].tolist(),
    }


def improvement(x: np.ndarray, y: np.ndarray) -> dict:
    np.random.seed(SEED)
    _, found = library.get_interval_estimates(
        {"pair": [x, y]}, lambda a, b: np.array([metrics.probability_of_improvement(a, b)]), reps=RESAMPLES
    )
    tests = [scipy.stats.mannwhitneyu(x[:, m], y[:, m], method="asymptotic") for m in range(x.shape[1])]
    return {
        "x": x.tolist(),
        "y": y.tolist(),
        "value": float(metrics.probability_of_improvement(x, y)),
        "interval": found["pair"].tolist(),
        "scipy_u": [float(test.statistic) for test in tests],
        "scipy_p": [float(test.pvalue) for test in tests],  # continuity-corrected
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json", required=True)
    arguments = parser.parse_args()
    known = cases()
    rng = np.random.default_rng(5)
    pairs = {
        "normal 5x4 and 8x4": improvement(known["normal 5x4"], rng.normal(0.4, 0.2, (8, 4))),
        "ties 7x3": improvement(known["ties 7x3"], rng.integers(0, 4, (7, 3)) / 4.0),
        "one task": improvement(known["normal 10x1"], rng.normal(0.3, 0.2, (6, 1))),
    }
    freedoms = [1.0, 1.5, 2.0, 3.7, 9.0, 42.0, 500.0]
    found = {
        "versions": {name: version(name) for name in ("rliable", "scipy", "arch", "numpy")},
        "resamples": RESAMPLES,
        "seed": SEED,
        "aggregates": {name: aggregates(scores) for name, scores in known.items()},
        "improvements": pairs,
        "student_quantiles": [[freedom, float(scipy.stats.t.ppf(0.975, freedom))] for freedom in freedoms],
    }
    Path(arguments.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
