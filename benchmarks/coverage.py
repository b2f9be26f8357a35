"""How often do 95 % intervals hold the truth, with 3, 5, 10 and 20 seeds? Simulated, for scores whose truth is known.

    python benchmarks/coverage.py --out benchmarks/results/coverage.json

Each experiment draws the scores of one method (normal, skewed like returns below a ceiling, or two modes: most runs
learn and some fail), on one task or five, and asks the shown interval and the plain percentile bootstrap (`rliable`'s)
whether they hold the true mean and IQM. The same for the probability of improvement between two methods, and for the
advice about how many seeds would settle a question. Takes two minutes.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np

from surefoot.analysis import intervals as iv
from surefoot.analysis.statistics import Array, iqm, mean, probability_of_improvement

LOCATION = (0.5, 0.2, 0.8, 0.4, 0.6)  # by task
SCALE = (0.1, 0.05, 0.15, 0.1, 0.2)
SEEDS, RESAMPLES = (3, 5, 10, 20), 1_000
STATISTICS = {"mean": mean, "iqm": iqm}


def draw(kind: str, rng: np.random.Generator, runs: int, task: int, shift: float = 0.0) -> Array:
    if kind == "normal":
        noise = rng.normal(size=runs)
    elif kind == "skewed":
        noise = 1.0 - rng.exponential(size=runs)
    else:  # seven of ten runs learn
        noise = np.where(rng.random(runs) < 0.7, 0.65, -1.5) + 0.3 * rng.normal(size=runs)
    return LOCATION[task] + SCALE[task] * (noise + shift)


def one_method(kind: str, tasks: int, seeds: int, experiments: int) -> dict[str, float]:
    """Shares of experiments whose interval holds the truth."""
    rng = np.random.default_rng([seeds, tasks])
    many = [draw(kind, rng, 1_000_000, task) for task in range(tasks)]
    truth = {name: float(statistic(many)) for name, statistic in STATISTICS.items()}
    held = {f"{name}_{how}": 0 for name in STATISTICS for how in ("shown", "percentile")}
    for experiment in range(experiments):
        scores = [draw(kind, rng, seeds, task) for task in range(tasks)]
        picks = iv.resample(scores, rng, RESAMPLES)
        for name, statistic in STATISTICS.items():
            low, high = iv.percentile_interval(iv.bootstrap(scores, statistic, picks))
            held[f"{name}_percentile"] += bool(low <= truth[name] <= high)
            shown = iv.interval(scores, statistic, seed=experiment, resamples=RESAMPLES)
            held[f"{name}_shown"] += shown.low <= truth[name] <= shown.high
    return {name: count / experiments for name, count in held.items()}


def two_methods(kind: str, tasks: int, seeds: int, shift: float, experiments: int) -> dict[str, float]:
    """Coverage of P(X > Y), and how often the two are called different (`settled`)."""
    rng = np.random.default_rng([seeds, tasks, 1])
    better, worse = partial(draw, kind, rng, shift=shift), partial(draw, kind, rng)
    many = [[one(4_000, task) for task in range(tasks)] for one in (better, worse)]
    truth = float(probability_of_improvement(*many)) if shift else 0.5
    held = {"improvement_shown": 0, "improvement_percentile": 0, "settled": 0}
    for _ in range(experiments):
        x, y = ([one(seeds, task) for task in range(tasks)] for one in (better, worse))
        shown = iv.improvement_interval(x, y)
        held["improvement_shown"] += shown.low <= truth <= shown.high
        held["settled"] += iv.is_settled(shown)
        drawn = [[a[p] for a, p in zip(side, iv.resample(side, rng, RESAMPLES), strict=True)] for side in (x, y)]
        low, high = iv.percentile_interval(probability_of_improvement(*drawn))
        held["improvement_percentile"] += bool(low <= truth <= high)
    return {"truth": truth} | {name: count / experiments for name, count in held.items()}


def plans(experiments: int) -> list[dict[str, float]]:
    """If P(X > Y) is known, do the seeds that are asked for settle it in 80 % of experiments?"""
    found = []
    for tasks in (1, 5):
        for shift in (0.75, 1.5, 3.0):  # of a normal's standard deviation: P = 0.70, 0.86, 0.98
            rng = np.random.default_rng(3)
            many = [[draw("normal", rng, 4_000, task, by) for task in range(tasks)] for by in (shift, 0.0)]
            truth = float(probability_of_improvement(*many))
            seeds = iv.seeds_needed(truth, tasks)
            assert seeds is not None
            settled = two_methods("normal", tasks, max(seeds, 2), shift, experiments)["settled"]
            found.append({"improvement": truth, "tasks": tasks, "seeds": seeds, "settled": settled})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json", required=True)
    parser.add_argument("--experiments", type=int, default=2_000)
    arguments = parser.parse_args()
    rows = []
    for kind in ("normal", "skewed", "two modes"):
        for tasks in (1, 5):
            for seeds in SEEDS:
                found = one_method(kind, tasks, seeds, arguments.experiments)
                for shift, name in ((0.0, "equal"), (1.0, "different")):
                    pair = two_methods(kind, tasks, seeds, shift, arguments.experiments)
                    found |= {f"{key}_{name}": value for key, value in pair.items()}
                rows.append({"scores": kind, "tasks": tasks, "seeds": seeds, **found})
                print(rows[-1], flush=True)
    result = {"experiments": arguments.experiments, "intervals": rows, "plans": plans(arguments.experiments)}
    for row in result["plans"]:
        print(row)
    Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
