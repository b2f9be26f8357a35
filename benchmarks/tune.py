"""Does `surefoot tune` find something better than the defaults, within its budget, on fresh seeds?

    python benchmarks/tune.py [--budget 1h] [--jobs 2] [--work DIR] [--out FILE.json]

Tunes PPO on LunarLander-v3, which has a preset, and on examples/swing.py (extra `mujoco`), which has none: for few
steps, after which the default has hardly begun to learn, and for so many that the default has nearly the best return.
Passes if all end within their budget, and all but at most one find settings whose 95 % interval on five fresh seeds
does not overlap the default's; the one must say that it found none. Killed or stopped, the same command continues in
DIR, where all runs are kept. Keeps the outcome in benchmarks/results/tune.json; exits with 1 if it does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import machine

import surefoot
from surefoot.tuning.budget import parse_budget
from surefoot.tuning.task import shipped_preset

SWING = f"{Path(__file__).parent.parent / 'examples' / 'swing.py'}:Swing"
TASKS = {"LunarLander-v3": ("LunarLander-v3", 300_000), "Swing": (SWING, 50_000), "Swing, long": (SWING, 300_000)}
KNOWN = {"LunarLander-v3"}  # has a preset
SLACK = 1.02  # of the budget: the last runs and the end of the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="1h", metavar="TIME", help="of each tune [1h]")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time [one per core]")
    parser.add_argument("--only", nargs="+", default=list(TASKS), choices=list(TASKS), help="these tasks")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the search and its runs [0]")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmark-tune"), metavar="DIR", help="for all runs")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "tune.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, object] = {"machine": machine.describe(), "budget": arguments.budget}
    found = {name: tune(name, arguments) for name in arguments.only}
    result |= {"tasks": found, "passed": passed(found)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["passed"] else 1)


def tune(name: str, arguments: argparse.Namespace) -> dict[str, object]:
    """One tune, begun or continued."""
    env, steps = TASKS[name]
    preset = shipped_preset(env, "ppo")
    assert (preset is not None) == (name in KNOWN), f"{name}: {preset}"
    tuned = surefoot.tune(
        env,
        "ppo",
        budget=arguments.budget,
        total_steps=steps,
        jobs=arguments.jobs,
        seed=arguments.seed,
        out=arguments.work / f"{steps // 1000}k" / name.partition(",")[0],
    )
    wanted = parse_budget(arguments.budget).seconds
    return {
        "better": tuned.better,
        "verdict": tuned.verdict,
        "within_budget": wanted is None or tuned.seconds <= SLACK * wanted,
        "seconds": tuned.seconds,
        "trials": tuned.trials,
        "steps": steps,
        "preset": preset,
        "scores": {name: vars(score) for name, score in tuned.scores.items()},
        "settings": dict(tuned.settings),
        "importances": dict(tuned.importances),
    }


def passed(found: dict[str, dict[str, object]]) -> bool:
    """At most one of the tasks may be left without an improvement."""
    missed = sum(not one["better"] for one in found.values())
    return all(one["within_budget"] for one in found.values()) and missed <= 1 and missed < len(found)


if __name__ == "__main__":
    main()
