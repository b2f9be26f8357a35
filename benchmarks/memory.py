"""What a memory costs: training steps per second with GRU and LSTM, compared with a feed-forward policy.

    python benchmarks/memory.py [--rounds 5] [--steps 20480]

CartPole-v1, PPO's defaults (8 × 128, 10 epochs of 4 minibatches), two 64-64 networks, memory of 64. The feed-forward
policy runs on the torch and the native engine; policies with memory run on what `auto` chooses, which is the native
one, and on torch with nothing compiled. Each run is a separate process. The variants alternate within each round, and
ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import machine

SIDES = {
    "feed-forward, torch": ["--engine", "torch"],
    "feed-forward, native": ["--engine", "native"],
    "GRU": ["--memory", "gru"],
    "LSTM": ["--memory", "lstm"],
    "GRU, nothing compiled": ["--memory", "gru", "--engine", "torch"],
    "LSTM, nothing compiled": ["--memory", "lstm", "--engine", "torch"],
}
BASE = "feed-forward, torch"


def speed(flags: list[str], steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "surefoot.cli.main", "train", "CartPole-v1", "--preset", "none", "--seed", "0"]
        words += ["--total-steps", str(steps), "--eval-episodes", "0", "--json", "--run-dir", f"{folder}/run", *flags]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        run = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    return float(json.loads(run.stdout.splitlines()[-1])["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "memory.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result = {"machine": machine.describe(), "steps": arguments.steps, "sides": {}}
    rounds: list[dict[str, float]] = []
    for number in range(arguments.rounds):
        names = list(SIDES)[:: -1 if number % 2 else 1]
        rounds.append({name: speed(SIDES[name], arguments.steps) for name in names})
        print(", ".join(f"{name} {rounds[-1][name]:,.0f}" for name in SIDES), flush=True)
    table = ["| policy | flags | steps/s | share of feed-forward, torch |", "|---|---|---|---|"]
    for name, flags in SIDES.items():
        found = machine.spread([r[name] for r in rounds])
        share = machine.spread([r[name] / r[BASE] for r in rounds])
        result["sides"][name] = {"flags": flags, "steps_per_second": found, "share": share}
        table.append(f"| {name} | `{' '.join(flags)}` | {found['median']:,.0f} | {machine.ratio(share)} |")
    machine.write(result | {"rounds": rounds}, table, arguments.out)


if __name__ == "__main__":
    main()
