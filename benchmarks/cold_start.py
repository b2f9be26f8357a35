"""From nothing to a solved task: the wall time of whole processes.

    python benchmarks/cold_start.py [--seeds 5] [--env CartPole-v1] [--target 475] [-- any flag of surefoot train]

Each seed is one process, `surefoot train ENV --target-return R --seed S`: starting the interpreter, imports, training,
every attempt at the target, the final evaluation over 100 fresh episodes, and saving. It is timed from outside. One
more process per round only imports what training needs, because no training code can make that part shorter. Seeds
run one after another. The operating system's file cache is warm after the first, which is reported like the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import machine

IMPORTS = "import surefoot.training.life.launch"


def timed(words: list[str], folder: str) -> tuple[float, str]:
    """(seconds, stdout) of one process."""
    path = os.pathsep.join([str(machine.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    start = perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    seconds = perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
    return seconds, done.stdout


def measure(env: str, target: str, seed: int, flags: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        imports, _ = timed([sys.executable, "-c", IMPORTS], folder)
        words = ["train", env, "--target-return", target, "--seed", str(seed), "--json", *flags]
        seconds, out = timed([sys.executable, "-m", "surefoot.cli.main", *words], folder)
    result = json.loads(out.splitlines()[-1])
    found = result["eval"]
    return {
        "seed": seed,
        "seconds": seconds,
        "import_seconds": imports,
        "training_seconds": result["seconds"],
        "reached": result["target_reached"],
        "steps": result["total_steps"],
        "mean_return": found["mean_return"],
        "episodes": found["episodes"],
        "engine": result["engine"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--target", default="475")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "cold_start.json", metavar="FILE.json")
    parser.add_argument("flags", nargs="*", help="of surefoot train, after --")
    arguments = parser.parse_args()
    command = " ".join(["surefoot train", arguments.env, "--target-return", arguments.target, *arguments.flags])
    result: dict[str, Any] = {"command": f"{command} --seed S", "machine": machine.describe(), "runs": []}
    print(result["command"], flush=True)
    table = [f"`{result['command']}`", ""]
    table += machine.head("seed", "whole process", "of it imports", "training", "steps", "greedy return", "reached")
    for seed in range(arguments.seeds):
        run = measure(arguments.env, arguments.target, seed, arguments.flags)
        result["runs"].append(run)
        table.append(
            machine.row(
                seed,
                f"{run['seconds']:.2f} s",
                f"{run['import_seconds']:.2f} s",
                f"{run['training_seconds']:.2f} s",
                f"{run['steps']:,}",
                f"{run['mean_return']:.1f}",
                "yes" if run["reached"] else "**no**",
            )
        )
        print(table[-1], flush=True)
    result["seconds"] = machine.spread([run["seconds"] for run in result["runs"]])
    result["all_reached"] = all(run["reached"] for run in result["runs"])
    table += ["", f"Whole process, median (lowest to highest): {machine.ratio(result['seconds'])} s"]
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
