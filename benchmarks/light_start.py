"""How long the light agent takes to start: whole processes, from nothing to the first action.

    python benchmarks/light_start.py [--rounds 20] [--run tests/fixtures/runs-0.1.0/ppo-cartpole]

Each round starts three processes one after another and times them from outside: Python alone, Python with NumPy, and
`surefoot.load(run, backend="numpy").predict(observation)`. The time that the last one spends after Python itself has
started is timed from inside. CPU time is reported, too: other work on the machine does not change it as much.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import machine

RUN = machine.ROOT / "tests" / "fixtures" / "runs-0.1.0" / "ppo-cartpole"
AGENT = """from time import perf_counter
start = perf_counter()
import sys
import surefoot
surefoot.load(sys.argv[1], backend="numpy").predict([0.0, 0.1, 0.0, -0.1])
print(perf_counter() - start, {"torch", "gymnasium"} & set(sys.modules))"""
PROCESSES = {"python": "pass", "numpy": "import numpy", "agent": AGENT}


def timed(code: str, run: Path) -> tuple[float, float, str]:
    """(seconds, CPU seconds, stdout) of one process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(machine.ROOT)}
    before, start = _cpu(), perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, env=environment)
    seconds = perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    return seconds, _cpu() - before, done.stdout


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(rounds: int, run: Path) -> list[dict[str, float]]:
    found = []
    for _ in range(rounds):
        numbers: dict[str, float] = {}
        for name, code in PROCESSES.items():
            numbers[name], numbers[f"{name}_cpu"], out = timed(code, run)
        inside, _, imported = out.strip().partition(" ")
        if imported != "set()":
            raise SystemExit(f"the light agent imported {imported}")
        found.append({**numbers, "inside": float(inside)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--run", type=Path, default=RUN)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "light_start.json", metavar="FILE.json")
    arguments = parser.parse_args()
    rounds = measure(arguments.rounds, arguments.run)
    result: dict[str, Any] = {"machine": machine.describe(), "rounds": rounds}
    rows = {
        "Python alone": ("python", "python_cpu"),
        "Python and NumPy": ("numpy", "numpy_cpu"),
        "the light agent, up to its first action": ("agent", "agent_cpu"),
        "of it after Python has started": ("inside", None),
    }
    table = machine.head("process", "median (lowest to highest)", "CPU, median")
    for label, (name, cpu) in rows.items():
        times = [each[name] for each in rounds]
        used = "" if cpu is None else f"{median(each[cpu] for each in rounds):.3f} s"
        table.append(machine.row(label, f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f}) s", used))
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
