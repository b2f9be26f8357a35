"""A sweep on a real Slurm cluster of one node that has a bad day, compared with the same sweep on this machine.

Six runs of an env that takes a millisecond per step. One job is cancelled and queued again, the sweep is killed and
started again, and the time limit is shorter than the runs. All six must end with the bytes of the local ones. Needs
Debian's slurm-wlm and munge, and root.

    python benchmarks/slurm_sweep.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import machine

sys.path.insert(0, str(machine.ROOT))

from tests.slurm_cluster import one_node, said, until, version, why_not

ENV = """
from time import sleep
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Slow(CartPoleEnv):
    def step(self, action):
        sleep(0.001)
        return super().step(action)
"""
FILES = ("policy.safetensors", "state.safetensors")


def flags(arguments: argparse.Namespace) -> list[str]:
    settings = ["--preset=none", "--rollout-length=64", "--num-envs=2", "--eval-episodes=1", "--checkpoint-every=1000"]
    return ["--env=slow.py:Slow", *settings, f"--total-steps={arguments.steps}", f"--seeds=0..{arguments.runs - 1}"]


@contextmanager
def sweep(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "surefoot", "sweep", *words, "--json", "--trust"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def jobs(state: str = "RUNNING") -> list[str]:
    return said(["squeue", "--noheader", f"--states={state}", "--format=%i"], {}).split()


def saved() -> int:
    """Runs with a checkpoint."""
    return len(list(Path("slurm").glob("*/*/*/checkpoints/LATEST")))


def bad_day(arguments: argparse.Namespace) -> list[str]:
    """What happened, until all runs were done."""
    happened = [f"a time limit of {arguments.minutes} minutes for each job"]
    words = [*flags(arguments), "--out=slurm", "--on=slurm", "--slurm", f"time={arguments.minutes}"]
    with sweep(*words):
        until(lambda: saved() >= 2 and len(jobs()) >= 2, seconds=600)
        again = jobs()[0]
        subprocess.run(["scontrol", "requeue", again], check=True)
        happened.append(f"job {again} cancelled and queued again")
    happened.append(f"the sweep killed, with {len(jobs('PENDING,RUNNING'))} of its jobs in the queue")
    with sweep(*words) as second:
        found, _ = second.communicate()
    happened.append(f"the second sweep ended with exit code {second.returncode}")
    assert json.loads(found.splitlines()[-1])["done"] == arguments.runs, found
    return happened


def equal(one: Path, other: Path) -> bool:
    step = (one / "checkpoints" / "LATEST").read_text(encoding="utf-8").split()[0]
    names = ["metrics.jsonl", *(f"checkpoints/{step}/{name}" for name in FILES)]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=80_000, help="of each run [80,000: 80 seconds of sleep]")
    parser.add_argument("--minutes", type=int, default=3, help="limit of a job; its signal comes 90 s earlier [3]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "slurm_sweep.json", metavar="FILE.json")
    arguments = parser.parse_args()
    out, missing = arguments.out.absolute(), why_not()
    if missing:
        parser.error(missing)
    result: dict[str, Any] = {"command": " ".join(sys.argv), "machine": machine.describe(), "slurm": version()}
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, one_node(Path(folder) / "cluster") as variables:
        os.environ.update(variables)
        os.chdir(folder)
        Path("slow.py").write_text(ENV, encoding="utf-8")
        started = perf_counter()
        result["happened"] = bad_day(arguments)
        result["seconds"] = round(perf_counter() - started, 1)
        with sweep(*flags(arguments), "--out=local", f"--jobs={arguments.runs}", "--no-pin") as local:
            local.communicate()
        table = machine.head("run", "times started", "equal to the local run")
        result["runs"] = []
        for run in sorted(path.parent for path in Path("slurm").glob("*/*/*/manifest.json")):
            lives = (run / "output.txt").read_text(encoding="utf-8").count("engine ")
            seed = run.name.rpartition("-")[2]
            same = equal(run, Path("local") / run.relative_to("slurm"))
            result["runs"].append({"run": seed, "started": lives, "equal": same})
            table.append(machine.row(seed, lives, "yes" if same else "NO"))
    table += ["", *(f"- {line}" for line in result["happened"]), "", f"{result['slurm']}, {result['seconds']} s"]
    machine.write(result, table, out)


if __name__ == "__main__":
    main()
