"""Whether the tests pass on a busy machine, every time, and how long they take on a quiet one.

    python benchmarks/suite_under_load.py [--runs 10] [--slow-runs 2] [--quiet-runs 1] [--busy 2] [-- words of pytest]

The README's test command (`pytest`) runs a few times on two cores, first alone and then with endless loops on the same
cores; the long tests (`pytest -m slow`) run with these loops as well. With `--together` the quick and the long tests
are each other's load, which takes half the time. With `--load COMMAND` another long proof takes the place of the loops
until it ends, such as `benchmarks/fuzz_runs.py --jobs 2`. Each run is a separate process. A failure is reported with
the name of its test, and the script continues.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
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


@contextmanager
def beside(command: str | None, loops: int) -> Iterator[None]:
    """A command at the same time, and after its end this many endless loops."""
    if command is None:
        with busy(loops):
            yield
        return
    over = threading.Event()

    def follow(started: subprocess.Popen[bytes]) -> None:
        print(f"{command}: exit code {started.wait()}", flush=True)
        with busy(0 if over.is_set() else loops):
            over.wait()

    with subprocess.Popen(shlex.split(command), cwd=machine.ROOT) as started:
        follower = threading.Thread(target=follow, args=(started,))
        follower.start()
        try:
            yield
            started.wait()
        finally:
            over.set()
            started.kill()
            follower.join()


class Log:
    """The summary, written after each run: what a cut-off session has measured is not lost."""

    def __init__(self, command: str, out: Path, *, add: bool) -> None:
        self.out, self.lock = out, threading.Lock()
        self.table = machine.head("tests", "beside", "passed", "failed", "skipped", "seconds")
        self.result: dict[str, Any] = {
            "command": command,
            "machine": machine.describe(),
            "all_passed": True,
            "runs": [],
        }
        if add and out.exists():
            for found in json.loads(out.read_text(encoding="utf-8"))["runs"]:
                self._note(found)

    def add(self, found: dict[str, Any]) -> None:
        with self.lock:
            self._note(found)
            print(self.table[-1], *found["failures"], sep="\n    ", flush=True)
            machine.write(self.result, self.table, self.out)

    def _note(self, found: dict[str, Any]) -> None:
        self.result["runs"].append(found)
        self.result["all_passed"] &= not found["failed"]
        keys = ("kind", "beside", "passed", "failed", "skipped", "seconds")
        self.table.append(machine.row(*(found[key] for key in keys)))


def both_at_once(log: Log, arguments: argparse.Namespace, words: list[str], slow_words: list[str]) -> None:
    """The quick and the long tests at the same time, two busy workers beside two. Once one kind is through with all its
    runs, the endless loops take its place."""
    through = threading.Barrier(2)

    def one_kind(kind: str, others: str, times: int, given: list[str]) -> None:
        for _ in range(times):
            log.add(run(kind, f"{others}, then {arguments.busy} busy loops", given))
        with busy(arguments.busy):
            through.wait()

    slow = threading.Thread(target=one_kind, args=("slow", "quick tests", arguments.slow_runs, slow_words))
    slow.start()
    one_kind("quick", "slow tests", arguments.runs, words)
    slow.join()


def run(kind: str, beside: str, words: list[str]) -> dict[str, Any]:
    """One run of the tests: how many passed, which failed, and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
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
        "beside": beside,
        "commit": machine.describe()["commit"],
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
        "--together", action="store_true", help="quick and long tests at once, each as the other's load"
    )
    parser.add_argument("--load", metavar="COMMAND", help="runs beside the tests first; the loops follow after its end")
    parser.add_argument("--add", action="store_true", help="to the runs that the summary already has")
    parser.add_argument(
        "--out", type=Path, default=machine.RESULTS / "suite_under_load.json", metavar="FILE.json", help="the summary"
    )
    parser.add_argument("words", nargs="*", help="arguments of pytest (a part of the tests, say), after --")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    words: list[str] = arguments.words
    slow_words = [*words, "-m", "slow"]
    log = Log(" ".join(["pytest", *words]), arguments.out, add=arguments.add)
    for _ in range(arguments.quiet_runs):
        log.add(run("quick", "nothing", words))
    if arguments.together:
        both_at_once(log, arguments, words, slow_words)
    else:
        first = "" if arguments.load is None else f"{arguments.load}, then "
        with beside(arguments.load, arguments.busy):
            for kind, given in [("quick", words)] * arguments.runs + [("slow", slow_words)] * arguments.slow_runs:
                log.add(run(kind, f"{first}{arguments.busy} busy loops", given))
    raise SystemExit(0 if log.result["all_passed"] else 1)


if __name__ == "__main__":
    main()
