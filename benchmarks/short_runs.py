"""Many very short runs, several at a time: each must end with exit code 0, however busy the machine is.

    python benchmarks/short_runs.py                          # 200 processes from the shell, 1,800 forked, six at a time
    python benchmarks/short_runs.py --processes 0 --forked 500 --at-once 4

Both kinds of process end in the same way (joining threads, freeing tensors, shutting the interpreter down). A process
from the shell spends most of its time on imports; a forked one is a copy of a process that has them. The counts of exit
codes go to `benchmarks/results/short_runs.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from machine import describe

RESULTS = Path(__file__).parent / "results" / "short_runs.json"
SETTINGS = (
    "--preset none --seed 0 --total-steps 128 --num-envs 2 --rollout-length 16 --num-epochs 1 --num-minibatches 1 "
    "--hidden-sizes 8 --log-every 32 --checkpoint-every 32 --eval-episodes 1"
)


STARTED: list[subprocess.Popen[bytes]] = []


def words_of(folder: Path, number: int) -> list[str]:
    return ["train", "CartPole-v1", *SETTINGS.split(), "--run-dir", str(folder / str(number))]


def start_process(folder: Path, number: int) -> int:
    """From the shell: a new interpreter."""
    command = [sys.executable, "-m", "surefoot.cli.main", *words_of(folder, number)]
    with open(folder / f"{number}.txt", "w", encoding="utf-8") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    STARTED.append(child)  # keep a reference: otherwise the next Popen reaps it, and its exit code is lost
    return child.pid


def start_forked(folder: Path, number: int) -> int:
    """A copy of this process, which has imported everything. It exits through `sys.exit`, like a command."""
    from surefoot.cli.main import main

    pid = os.fork()
    if pid:
        return pid
    out = os.open(folder / f"{number}.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.exit(main(words_of(folder, number)))


def run_all(start: Callable[[Path, int], int], count: int, at_once: int, failed: list[str]) -> dict[str, Any]:
    """Exit codes (negative: the signal) of `count` runs, and how long all took."""
    codes: Counter[int] = Counter()
    running: dict[int, int] = {}
    begin, started = perf_counter(), 0
    folder = Path(tempfile.mkdtemp())  # no context manager, because a forked process would exit it too
    while started < count or running:
        while started < count and len(running) < at_once:
            running[start(folder, started)] = started
            started += 1
        pid, status = os.wait()
        number, code = running.pop(pid), os.waitstatus_to_exitcode(status)
        codes[code] += 1
        if code:
            failed.append((folder / f"{number}.txt").read_text()[-1000:])
        shutil.rmtree(folder / str(number), ignore_errors=True)
        (folder / f"{number}.txt").unlink()
    folder.rmdir()
    seconds = perf_counter() - begin
    return {"runs": count, "exit_codes": {str(code): n for code, n in codes.items()}, "seconds": round(seconds, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=200, help="runs from the shell [200]")
    parser.add_argument("--forked", type=int, default=1800, help="runs in forked processes [1800]")
    parser.add_argument("--at-once", type=int, default=6, help="how many run at a time [6]")
    parser.add_argument("--no-result", action="store_true", help="print the counts and write no file")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    failed: list[str] = []
    result: dict[str, Any] = {"machine": describe(), "at_once": arguments.at_once}
    result["processes"] = run_all(start_process, arguments.processes, arguments.at_once, failed)
    for module in ("surefoot.training.life.launch", "surefoot.cli.train", "gymnasium.envs.classic_control.cartpole"):
        import_module(module)
    result["forked"] = run_all(start_forked, arguments.forked, arguments.at_once, failed)
    result["load_at_end"] = round(os.getloadavg()[0], 2)
    result["failures"] = len(failed)
    if not arguments.no_result:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    for text in failed[:5]:
        print(text, file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
