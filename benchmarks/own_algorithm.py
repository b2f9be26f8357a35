"""The speed of a user's own algorithm: SPO (examples/spo.py) compared with PPO, both on the kernels.

    python benchmarks/own_algorithm.py [--rounds 7] [--seconds 3]

CartPole-v1 with PPO's tuned preset, alternating in one process, so that both see the same machine. The result is the
ratio of the two fastest rounds, because other load can only slow a round down. It must be at least 0.9.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import machine

from surefoot.bench.measure import WARM_UP, measure, only_training
from surefoot.training.config.resolve import resolve

SIDES = {"PPO": "ppo", "SPO": f"{machine.ROOT / 'examples' / 'spo.py'}:SPO"}
WANTED = 0.9


def rounds_of(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Steps per second of each side, round by round."""
    configs = {
        name: only_training(resolve("CartPole-v1", algo, overrides={"seed": 0, "threads": 1}), endless=True)
        for name, algo in SIDES.items()
    }
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    for config in configs.values():
        measure(config, "native", WARM_UP)
    for number in range(rounds):
        for name in list(SIDES)[:: -1 if number % 2 else 1]:
            found[name].append(measure(configs[name], "native", seconds)["steps_per_second"])
        print(", ".join(f"{name} {speeds[-1]:,.0f} steps/s" for name, speeds in found.items()), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "own_algorithm.json", metavar="FILE.json")
    arguments = parser.parse_args()
    start = machine.describe()
    found = rounds_of(arguments.rounds, arguments.seconds)
    best = {name: max(speeds) for name, speeds in found.items()}
    share = machine.spread([own / ours for own, ours in zip(found["SPO"], found["PPO"], strict=True)])
    result = {"machine": start, "seconds": arguments.seconds, "steps_per_second": found, "share": share}
    result |= {"share_of_fastest": best["SPO"] / best["PPO"]}
    table = ["| algorithm | steps/s, fastest | median |", "|---|---:|---:|"]
    table += [f"| {name} | {best[name]:,.0f} | {machine.spread(found[name])['median']:,.0f} |" for name in SIDES]
    table += [
        "",
        f"SPO / PPO: {result['share_of_fastest']:.2f} of the fastest rounds; {machine.ratio(share)} round by round",
    ]
    machine.write(result, table, arguments.out)
    if result["share_of_fastest"] < WANTED:
        raise SystemExit(f"SPO has {result['share_of_fastest']:.2f} of PPO's speed; {WANTED} was wanted")


if __name__ == "__main__":
    main()
