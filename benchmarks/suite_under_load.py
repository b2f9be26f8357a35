"""Whether the tests pass on a busy machine, every time, and how long they take on a quiet one.

    python benchmarks/suite_under_load.py [--runs 10] [--slow-runs 2] [--quiet-runs 1] [--busy 2] [-- words of pytest]

The README's test command (`pytest`) runs a few times on two cores, first alone and then with endless loops on the same
cores; the long tests (`pytest -m slow`) run with these loops as well. Each run is a separate process. A failure is
reported with the name of its test, and the script continues.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from xml.etree import ElementTree

import machine

CORES = 2
# The loop ends with this process, however that ends.
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """This many endless loops beside whatever runs here."""
    started = [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in started:
            loop.kill()
            loop.wait()


def run(kind: str, loops: int, words: list[str]) -> dict[str, Any]:
    """One run of the tests: how many passed, which failed, and the seconds."""
    with tempfile.TemporaryDirectory() as folder, busy(loops):
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *words, "-q", f"--junitxml={report}"]
        start = perf_counter()
        done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True)
        seconds = perf_counter() - start
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failures = [name(case) for case in cases if outcomes(case) & {"failure", "error"}]
    skipped = sum("skipped" in outcomes(case) for case in cases)
    if done.returncode not in (0, 1) or not cases:  # pytest itself failed: a worker died, or nothing was collected
        last = (done.stdout.strip() or done.stderr.strip() or "nothing was said").splitlines()[-1]
        failures.append(f"pytest ended with exit code {done.returncode}: {last}")
    return {
        "kind": kind,
        "busy_loops": loops,
        "passed": len(cases) - skipped - sum(bool(outcomes(case) & {"failure", "error"}) for case in cases),
        "failed": len(failures),
        "skipped": skipped,
        "seconds": round(seconds, 1),
        "failures": failures,
    }


def outcomes(case: ElementTree.Element) -> set[str]:
    return {child.tag for child in case}


def name(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of the README's test command on a busy machine [10]")
    parser.add_argument("--slow-runs", type=int, default=2, help="of the long tests on a busy machine [2]")
    parser.add_argument("--quiet-runs", type=int, default=1, help="of the README's test command alone [1]")
    parser.add_argument("--busy", type=int, default=2, help="endless loops on the same two cores [2]")
    parser.add_argument(
        "--out", type=Path, default=machine.RESULTS / "suite_under_load.json", metavar="FILE.json", help="the summary"
    )
    parser.add_argument("words", nargs="*", help="arguments of pytest (a part of the tests, say), after --")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    words: list[str] = arguments.words
    result: dict[str, Any] = {"command": " ".join(["pytest", *words]), "machine": machine.describe(), "runs": []}
    plan = [("quick", 0, words)] * arguments.quiet_runs
    plan += [("quick", arguments.busy, words)] * arguments.runs
    plan += [("slow", arguments.busy, [*words, "-m", "slow"])] * arguments.slow_runs
    table = machine.head("tests", "busy loops", "passed", "failed", "skipped", "seconds")
    for kind, loops, given in plan:
        found = run(kind, loops, given)
        result["runs"].append(found)
        table.append(
            machine.row(*(found[key] for key in ("kind", "busy_loops", "passed", "failed", "skipped", "seconds")))
        )
        print(table[-1], *found["failures"], sep="\n    ", flush=True)
    result["all_passed"] = all(not found["failed"] for found in result["runs"])
    machine.write(result, table, arguments.out)
    raise SystemExit(0 if result["all_passed"] else 1)


if __name__ == "__main__":
    main()
