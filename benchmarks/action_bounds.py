"""The kernels' speed-up for each way of keeping actions within their bounds: clipped, tanh-squashed, Beta.

    python benchmarks/action_bounds.py [--rounds 5] [--seconds 4]

PPO on Pendulum-v1 (4 envs × 1024 steps, 10 epochs of 64 minibatches). The native engine and PyTorch alternate in one
process; ratios are taken within a round. tanh and Beta must be at least 4 times as fast.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import machine

from surefoot.bench.measure import bench
from surefoot.training.config.resolve import resolve

BOUNDS = ("clip", "tanh", "beta")
SETTINGS = {"num_envs": 4, "rollout_length": 1024, "num_epochs": 10, "num_minibatches": 64, "threads": 1, "seed": 0}
WANTED = {"tanh": 4.0, "beta": 4.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "action_bounds.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "settings": SETTINGS, "bounds": {}}
    table = machine.head("action bounds", "PyTorch, steps/s", "native, steps/s", "ratio, median (range)")
    missed = []
    for bounds in BOUNDS:
        config = resolve("Pendulum-v1", "ppo", preset="none", overrides=SETTINGS | {"action_bounds": bounds})
        found = bench(config, rounds=arguments.rounds, seconds=arguments.seconds, say=print)
        speeds = {name: found["engines"][name]["steps_per_second"] for name in ("torch", "native")}
        ratio = found["ratios"]["native"]
        result["bounds"][bounds] = {"steps_per_second": speeds, "ratio": ratio}
        medians = [f"{spread['median']:,.0f}" for spread in speeds.values()]
        table.append(machine.row(bounds, *medians, machine.ratio(ratio)))
        if ratio["median"] < WANTED.get(bounds, 0.0):
            missed.append(bounds)
    machine.write(result, table, arguments.out)
    if missed:
        raise SystemExit(f"below 4 times the speed of PyTorch: {', '.join(missed)}")


if __name__ == "__main__":
    main()
