"""Do the engines learn the same? PyTorch against the compiled kernels over many seeds.

    python benchmarks/same_learning.py [--seeds 20] [--processes 2] [--only NAME …]

There is one run of a preset for every seed and engine. Its score is the area under the learning curve: the mean of the
training return over env steps, where the return of the last finished episodes holds until others finish. (The few steps
before the first end do not count.) The difference of the engines' mean scores is divided by the mean score, and its
95 % interval must lie within ±5 %. The interval is a percentile bootstrap over seeds; a seed's two runs are drawn
together because they start alike. They do not stay alike: the engines agree only up to rounding, and learning is
chaotic.

We use presets, because a setting that learns only on some seeds would need hundreds of them for 5 % precision.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np

ENGINES = ("torch", "native")
MARGIN = 0.05


@dataclass(frozen=True)
class Case:
    name: str
    env: str
    algo: str
    total_steps: int

    @property
    def says(self) -> str:
        return f"{self.algo} on {self.env}, {self.total_steps:,} steps"


CASES = [
    Case("ppo-cartpole", "CartPole-v1", "ppo", 100_000),
    Case("trpo-cartpole", "CartPole-v1", "trpo", 100_000),
    Case("ppo-pendulum", "Pendulum-v1", "ppo", 200_000),
]


def area(steps: list[int], returns: list[float], total: int) -> float:
    """The return of the last finished episode, averaged over the steps from the first end of an episode to `total`.

    `steps`: where each episode ended. Several that end at one step count with their mean.
    """
    ends = np.asarray(steps, np.float64)
    at, where = np.unique(ends, return_inverse=True)
    means = np.bincount(where, np.asarray(returns, np.float64)) / np.bincount(where)
    widths = np.diff(np.append(at, float(total)))
    return float((means * widths).sum() / widths.sum())


def score(task: tuple[Case, str, int]) -> dict[str, Any]:
    """One run."""
    import surefoot

    class Curve(surefoot.Callback):
        """Records the ends of episodes. Those of one rollout count as ending together, at its end."""

        def __init__(self) -> None:
            self.steps: list[int] = []
            self.returns: list[float] = []
            self.seen = 0

        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            new = trainer.episodes - self.seen
            if new:
                self.returns += trainer.recent[-new:]
                self.steps += [trainer.step] * min(new, len(trainer.recent))
                self.seen = trainer.episodes

    case, engine, seed = task
    curve, start = Curve(), perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(
            case.env,
            case.algo,
            seed=seed,
            engine=engine,
            eval_episodes=0,
            progress=False,
            callbacks=[curve],
            run_dir=Path(folder) / "run",
            total_steps=case.total_steps,
        )
        assert run.result["engine"] == engine, run.result
        total = run.result["total_steps"]
    found = {"case": case.name, "engine": engine, "seed": seed, "area": area(curve.steps, curve.returns, total)}
    return found | {"last": float(np.mean(curve.returns[-20:])), "seconds": perf_counter() - start}


def difference_interval(ours: list[float], oracle: list[float]) -> tuple[float, float, float]:
    """((mean − oracle's mean) / |oracle's mean|, its 95 % interval); index i of both lists is seed i."""
    from surefoot.analysis.resampling import bootstrap_interval

    first, second = np.asarray(ours, np.float64), np.asarray(oracle, np.float64)

    def relative(drawn: Any) -> Any:
        """`[resamples, seeds]` of seeds -> `[resamples]`."""
        seeds = drawn.astype(np.int64)
        means = second[seeds].mean(1)
        return (first[seeds].mean(1) - means) / np.abs(means)

    every = np.arange(len(first), dtype=np.float64)
    return (float(relative(every[None])[0]), *bootstrap_interval(every, relative))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="*", metavar="NAME", help=", ".join(case.name for case in CASES))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps [1]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "same_learning.json", metavar="FILE.json")
    arguments = parser.parse_args()
    chosen = [
        replace(case, total_steps=int(case.total_steps * arguments.scale))
        for case in CASES
        if not arguments.only or case.name in arguments.only
    ]
    if len(chosen) < len(arguments.only or ()):
        parser.error(f"--only takes {', '.join(case.name for case in CASES)}")
    tasks = [(case, engine, seed) for case in chosen for seed in range(arguments.seeds) for engine in ENGINES]
    runs: list[dict[str, Any]] = []
    start = perf_counter()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for found in pool.imap(score, tasks):
            runs.append(found)
            line = f"{found['case']} {found['engine']:<6} seed {found['seed']:>2}: area {found['area']:.1f}"
            print(f"{line}, last episodes {found['last']:.1f}, {found['seconds']:.1f} s", flush=True)
    result: dict[str, Any] = {"machine": machine.describe(), "margin": MARGIN, "cases": {}, "runs": runs}
    table = machine.head("what", "seeds", "torch, mean area", "native", "difference", "95 % interval", "within ±5 %")
    for case in chosen:
        areas = {
            engine: [run["area"] for run in runs if run["case"] == case.name and run["engine"] == engine]
            for engine in ENGINES
        }
        middle, low, high = difference_interval(areas["native"], areas["torch"])
        within = low >= -MARGIN and high <= MARGIN
        means = {engine: float(np.mean(found)) for engine, found in areas.items()}
        result["cases"][case.name] = {
            "says": case.says,
            "mean_area": means,
            "std_area": {engine: float(np.std(found)) for engine, found in areas.items()},
            "relative_difference": middle,
            "interval": [low, high],
            "within_margin": within,
        }
        cells = [f"{means[engine]:.1f}" for engine in ENGINES]
        interval = f"{low:+.1%} to {high:+.1%}"
        row = machine.row(case.says, arguments.seeds, *cells, f"{middle:+.1%}", interval, "yes" if within else "**no**")
        table.append(row)
    result["seconds"] = perf_counter() - start
    machine.write(result, table, arguments.out)
    sys.exit(0 if all(case["within_margin"] for case in result["cases"].values()) else 1)


if __name__ == "__main__":
    main()
