"""What safety costs: saving and finite checks in a default CartPole run, and a long run that must stay flat.

    python benchmarks/safety.py                 # five default runs: seconds in saving and in finite checks, and shares
    python benchmarks/safety.py --minutes 10    # also one run of ten minutes: saving, memory, descriptors, threads
    python benchmarks/safety.py --often         # only runs with a checkpoint every 1,000 steps: the share of saving
    python benchmarks/safety.py --often --before CHECKOUT    # and those of an older version (built), alternating

Times are taken inside the run, around every call, so the shares do not depend on how busy the machine is; the two clock
readings around each check are counted as part of it. The results go to `benchmarks/results/safety.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import surefoot
from surefoot.engine.torch.learner import Learner
from surefoot.envs import gym_envs
from surefoot.training.loop.saving import Saving

RESULTS = Path(__file__).parent / "results" / "safety.json"
ROUNDS = 5


class Stopwatch:
    """Sums the seconds spent inside functions, wherever they are called."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        self._undo: list[Callable[[], None]] = []

    def watch(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return real(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - start
                self.calls += 1

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, real))

    def stop(self) -> None:
        for undo in self._undo:
            undo()


def finite_parameters_seconds() -> float:
    """The time of checking all parameters, which every update does (the other numbers are read anyway)."""
    vector = torch.randn(9_155)
    start = perf_counter()
    for _ in range(1000):
        vector.isfinite().all()
    return (perf_counter() - start) / 1000


def default_run(seed: int, folder: Path) -> dict[str, float]:
    saving, checking, updates = Stopwatch(), Stopwatch(), Stopwatch()
    saving.watch(Saving, "save")
    checking.watch(gym_envs, "require_finite")
    updates.watch(Learner, "summarize")
    try:
        run = surefoot.train("CartPole-v1", seed=seed, run_dir=folder / str(seed), progress=False, eval_episodes=0)
    finally:
        for stopwatch in (saving, checking, updates):
            stopwatch.stop()
    seconds = run.result["seconds"]
    checks = checking.seconds + updates.calls * finite_parameters_seconds()
    return {
        "seconds": seconds,
        "saves": saving.calls,
        "save_seconds": saving.seconds,
        "save_share": saving.seconds / seconds,
        "finite_checks": checking.calls + updates.calls,
        "finite_seconds": checks,
        "finite_share": checks / seconds,
    }


class Vitals(surefoot.Callback):
    """Memory, file descriptors, threads and children of this process, every ten seconds."""

    def __init__(self) -> None:
        self.samples: list[dict[str, float]] = []
        self._start = perf_counter()

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        now = perf_counter() - self._start
        if now >= 10.0 * len(self.samples):
            status = dict(
                line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            )
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
            self.samples.append(
                {
                    "seconds": round(now, 1),
                    "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "threads": threading.active_count(),
                    "children": len(children),
                }
            )


def long_run(minutes: float, folder: Path) -> dict[str, Any]:
    vitals, saving = Vitals(), Stopwatch()
    saving.watch(Saving, "save")
    try:
        run = surefoot.train(
            "CartPole-v1",
            seed=0,
            run_dir=folder / "long",
            total_steps=10**9,
            max_time=60.0 * minutes,
            eval_every=1_000_000,
            selection_episodes=5,
            log_every=10_000,
            callbacks=[vitals],
            progress=False,
        )
    finally:
        saving.stop()
    seconds = run.result["seconds"]
    warm = [sample for sample in vitals.samples if sample["seconds"] >= seconds / 4]
    return {
        "seconds": seconds,
        "steps": run.result["total_steps"],
        "saves": saving.calls,
        "save_share": saving.seconds / seconds,
        "after_a_quarter": warm[0],
        "at_the_end": warm[-1],
        "rss_growth_mib": warm[-1]["rss_mib"] - warm[0]["rss_mib"],
    }


OFTEN = """
import json, sys, tempfile, surefoot
with tempfile.TemporaryDirectory() as folder:
    run = surefoot.train(
        "CartPole-v1", seed=0, run_dir=folder + "/run", progress=False, eval_episodes=0, checkpoint_every=1000
    )
    result = run.result
print(json.dumps({"seconds": result["seconds"], "save_share": result["time_split"]["save"]}))
"""


def saving_often(before: str | None) -> dict[str, Any]:
    """A default run with a checkpoint every 1,000 steps, by the run's own time split; `before`: also that version."""
    versions = {"now": None} | ({} if before is None else {"before": before})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for _ in range(ROUNDS):
        for name, checkout in versions.items():
            environment = os.environ | ({} if checkout is None else {"PYTHONPATH": str(Path(checkout).resolve())})
            command = [sys.executable, "-P", "-c", OFTEN]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {key: statistics.median(r[key] for r in rounds) for key in rounds[0]} for name, rounds in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.0, help="length of the long run [none]")
    parser.add_argument("--often", action="store_true", help="only the runs that save every 1,000 steps")
    parser.add_argument("--before", metavar="CHECKOUT", help="an older version to compare those with")
    arguments = parser.parse_args()
    result: dict[str, Any]
    if arguments.often:
        result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        result["every_1k"] = {"load_at_start": round(os.getloadavg()[0], 1), **saving_often(arguments.before)}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["every_1k"], indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        rounds = [default_run(seed, Path(folder)) for seed in range(ROUNDS)]
        result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        result["default_run"] = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        result["worst"] = {
            name: max(r[name] for r in rounds) for name in ("save_share", "save_seconds", "finite_share")
        }
        if arguments.minutes:
            result["long_run"] = long_run(arguments.minutes, Path(folder))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
