"""How the cost of training grows with the number of envs, the width, the minibatch and the rollout, on either engine.

    python benchmarks/scaling.py [--rounds 3] [--seconds 1.5] [--only num_envs …] [--env CartPole-v1]

One quantity is varied at a time, starting from PPO with 8 envs × 128 steps, 4 epochs × 4 minibatches and two 64-64
networks. At every point the engines alternate for some seconds each. We keep the median of the rounds, its range, and
where the time of an env step goes. "growth" is how many times longer an env step takes than at the first point.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import machine

from surefoot.bench.measure import bench
from surefoot.training.config.resolve import resolve

BASE = {"num_envs": 8, "rollout_length": 128, "num_epochs": 4, "num_minibatches": 4, "hidden_sizes": (64, 64)}
SAMPLES = 1024  # of a rollout at the starting point
POINTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "num_envs": [(str(n), {"num_envs": n}) for n in (1, 4, 16, 64, 256)],
    "width": [(f"{n}-{n}", {"hidden_sizes": (n, n)}) for n in (16, 64, 128, 256, 512)],
    "minibatch": [(str(n), {"num_minibatches": SAMPLES // n}) for n in (16, 64, 256, 1024)],
    "rollout_length": [(str(n), {"rollout_length": n}) for n in (16, 64, 256, 1024, 4096)],
}
ENGINES = ("torch", "native")


def measure(env: str, settings: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """For both engines: steps per second, and microseconds per env step by part."""
    config = resolve(env, "ppo", "none", None, {**BASE, **settings})
    found = bench(config, ENGINES, rounds=rounds, seconds=seconds)
    points: dict[str, Any] = {}
    for engine, own in found["engines"].items():
        step = 1e6 / own["steps_per_second"]["median"]
        parts = {name: step * share for name, share in own["split"].items()}
        points[engine] = {"steps_per_second": own["steps_per_second"], "microseconds": step, "parts": parts}
    return {"engines": points, "ratio": found["ratios"].get("native"), "missing": found["missing"]}


def rows(quantity: str, points: dict[str, Any]) -> list[str]:
    first = next(iter(points.values()))["engines"]
    lines = []
    for value, found in points.items():
        for engine, own in found["engines"].items():
            speed, parts = own["steps_per_second"], own["parts"]
            ratio = found["ratio"] if engine == "native" else None
            lines.append(
                machine.row(
                    f"{quantity} {value}",
                    engine,
                    f"{speed['median']:,.0f} ({speed['low']:,.0f} to {speed['high']:,.0f})",
                    f"{own['microseconds']:.2f}",
                    *(f"{parts.get(name, 0.0):.2f}" for name in ("env", "act", "learn")),
                    f"{own['microseconds'] / first[engine]['microseconds']:.2f}",
                    "" if ratio is None else machine.ratio(ratio),
                )
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each run [1.5]")
    parser.add_argument("--only", nargs="*", choices=list(POINTS), default=list(POINTS))
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "scaling.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"env": arguments.env, "base": BASE, "machine": machine.describe(), "quantities": {}}
    table = machine.head("", "engine", "steps/s", "µs per step", "env", "act", "learn", "growth", "native / torch")
    for quantity in arguments.only:
        points: dict[str, Any] = {}
        for value, settings in POINTS[quantity]:
            points[value] = measure(arguments.env, settings, arguments.rounds, arguments.seconds)
            speeds = [
                f"{engine} {own['steps_per_second']['median']:,.0f}" for engine, own in points[value]["engines"].items()
            ]
            print(f"{quantity} {value}: {', '.join(speeds)} steps/s", flush=True)
        result["quantities"][quantity] = points
        table += rows(quantity, points)
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
