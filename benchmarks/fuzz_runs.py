"""Modifies the files of a run in thousands of ways, and checks that only our own errors result.

    python benchmarks/fuzz_runs.py [--jobs 2]             # 10,000 changes, an hour or two
    python benchmarks/fuzz_runs.py --mutations 300        # a few minutes
    python benchmarks/fuzz_runs.py --first 1234 --mutations 1 --verbose   # one of them again

`mutations.py` changes a copy of a small run (tests/fixtures): flipped bits, truncated files, values of other types,
wild numbers, deep nesting, control characters, pipes instead of files. For checkpoint files the hashes are mostly
adjusted, as a forger would. After each change, every command that reads runs is tried in a child process with little
memory. It may succeed, or fail with one of our errors and its exit code. Any other exception, more than `LIMIT`
seconds, a process that dies, or a control character in the output is listed as a fault. The result goes to
`benchmarks/results/fuzz_runs.json`.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from machine import RESULTS, ROOT, describe
from mutations import mutate, mutate_episodes

LIMIT = 60  # seconds per command, on a busy machine
MEMORY = 3 * 2**30  # bytes that a command may allocate
CHUNK = 500  # changes per child process
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069]")
RUN = "runs/stranger"
SHARED = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # avoids waiting for the disk
FIXTURES = sorted(path.parent for path in (ROOT / "tests" / "fixtures").glob("runs-*/*/manifest.json"))
NEW = ["--run-dir=new", "--max-time=0.05s", "--eval-episodes=0"]
FRESH = ["--preset=none", "--hidden-sizes", "8", "8", "--num-envs=4", "--rollout-length=16", "--total-steps=64"]


def ways(number: int) -> dict[str, Callable[[str], Any]]:
    """Every way into a run. Those that take long are tried on a part of the changes."""
    import surefoot
    from surefoot.cli.main import main
    from surefoot.runs import RunDirectory
    from surefoot.training.reports.trackers import Followed, final_evaluation, rows_after

    def look(name: str) -> Callable[[str], Any]:
        return lambda env: getattr(surefoot.Run(RunDirectory(Path(RUN))), name) and 0

    def mirror(env: str) -> None:
        run = RunDirectory(Path(RUN))
        list(rows_after(run, Followed("wandb", run).step))
        final_evaluation(run)

    found: dict[str, Callable[[str], Any]] = {
        "list runs": lambda env: main(["list", "runs"]),
        "list runs --json": lambda env: main(["list", "runs", "--json"]),
        "run.metrics": look("metrics"),
        "run.config": look("config"),
        "run.result": look("result"),
        "run.episodes": look("episodes"),
        "run.to_monitor": lambda env: surefoot.Run(RunDirectory(Path(RUN))).to_monitor("new") and 0,
        "load": lambda env: surefoot.load(RUN) and 0,
        "load best": lambda env: surefoot.load(RUN, "best") and 0,
        "tracker": mirror,
        "eval": lambda env: main(["eval", RUN, "--episodes=2", "--max-steps=5", "--json"]),
        "train --like --dry-run": lambda env: main(["train", "--like", RUN, "--dry-run"]),
        "resume": lambda env: main(["resume", RUN, "--max-time=0.05s", "--total-steps=2016"]),
        "diagnose": lambda env: main(["diagnose", RUN]),
        "plot": lambda env: main(["plot", RUN, "runs/innocent", "--terminal"]),
        "compare": lambda env: main(["compare", RUN, "runs/innocent"]),
        "page": lambda env: page(),
    }
    if number % 2:
        found["train --like"] = lambda env: main(["train", "--like", RUN, *NEW])
    else:
        found["train --init-from"] = lambda env: main(["train", env, "--init-from", RUN, *FRESH, *NEW])
    if number % 4 == 0:
        found["replay"] = lambda env: main(["replay", RUN, "--update=2"])
        found["diff"] = lambda env: main(["diff", RUN, "runs/innocent"])
    if number % 4 == 1:
        found["pack"] = lambda env: main(["pack", RUN, "--out=new.zip"])
        found["load numpy"] = lambda env: surefoot.load(RUN, backend="numpy") and 0
    if number % 20 == 3:
        found["export"] = lambda env: main(["export", RUN, "--to=c", "--out=new"])
    if number % 20 == 0:
        found["video"] = lambda env: main(["video", RUN, "--max-steps=2", "--untrained"])
    return found


def page() -> None:
    """Everything that the page asks about a run. An answer with status 500 is raised by the client as an exception."""
    from starlette.testclient import TestClient

    from surefoot.dashboard.app import make_app

    asked = ["metrics", "curves?metric=kl", "curves?metric=episode_return&group=seeds", "compare", "run", "config"]
    with TestClient(make_app(Path("runs")), base_url="http://127.0.0.1:6060") as client:
        names = [run["id"] for run in client.get("/api/runs").json()["runs"]]
        both = "".join(f"&run={name}" for name in names)
        for question in asked:
            client.get(f"/api/{question}{'&' if '?' in question else '?'}{both}")
        for file in ("metrics.csv", "config.toml", "manifest.json"):
            client.get(f"/download/{file}", params={"run": "stranger"})


def attempt(way: Callable[[str], Any], env: str, verbose: bool) -> tuple[str, str]:
    """(how it ended, the fault if there was one)."""
    from surefoot.errors import SurefootError

    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            code = way(env)
        ended = "fine" if not code else f"exit {code}"
    except SurefootError as error:
        ended = type(error).__name__
        out.write(str(error))
    except BaseException as error:
        return "traceback", "".join(traceback.format_exception(error))[-3000:]
    if verbose:
        print(f"--- {ended}\n{out.getvalue()[-600:]}", file=sys.stderr)
    if RAW.search(out.getvalue()):
        return "raw output", repr(out.getvalue()[:1000])
    return ended, ""


def work(first: int, count: int, verbose: bool) -> None:
    """In a child: try the changes from number `first` on, with a line of JSON for everything that begins or ends."""
    import torch

    torch.set_num_threads(1)
    faulthandler.enable()
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    report = os.fdopen(os.dup(1), "w")

    def say(**facts: Any) -> None:
        print(json.dumps(facts), file=report, flush=True)

    for number in range(first, first + count):
        rng = Random(f"surefoot {number}")
        source = rng.choice(FIXTURES)
        env = json.loads((source / "manifest.json").read_text())["env"]
        shutil.rmtree("runs", ignore_errors=True)
        shutil.copytree(source, RUN)
        shutil.copytree(source, "runs/innocent")
        what = (mutate_episodes if number % 25 == 13 else mutate)(Path(RUN), rng)
        for name, way in ways(number).items():
            say(number=number, what=f"{source.name} {what}", way=name)
            ended, fault = attempt(way, env, verbose)
            shutil.rmtree("new", ignore_errors=True)
            Path("new.zip").unlink(missing_ok=True)
            say(ended=ended, fault=fault)


def children(first: int, count: int, verbose: bool) -> Iterator[dict[str, Any]]:
    """The results of all attempts; if a child dies, another continues."""
    at, end = first, first + count
    while at < end:
        size = min(CHUNK, end - at)
        command = [sys.executable, __file__, "--child", f"--first={at}", f"--mutations={size}"]
        command += ["--verbose"] * verbose
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SHARED) as folder:
            own = {**os.environ, "XDG_STATE_HOME": f"{folder}/state", "OMP_NUM_THREADS": "1", "CI": "1"}
            with open(f"{folder}/stderr", "w", encoding="utf-8") as errors:
                child = subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=errors)
            begun: dict[str, Any] = {"number": at}
            for facts in reported(child):
                if "way" in facts:
                    begun = facts
                else:
                    yield {**begun, **facts}
                    begun = {"number": begun["number"]}
            said = Path(f"{folder}/stderr").read_text(encoding="utf-8", errors="replace")[-4000:]
        if verbose:
            print(said)
        if "way" not in begun and child.returncode == 0:
            at += size
            continue
        ended = "hang" if child.returncode == -signal.SIGABRT else f"crash {child.returncode}"
        yield {**begun, "ended": ended, "fault": said}
        at = begun["number"] + 1


def together(first: int, count: int, jobs: int, verbose: bool) -> Iterator[dict[str, Any]]:
    """The results of all attempts, in `jobs` child processes at once, each with its own changes."""
    found: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def follow(job: int) -> None:
        begin, end = first + count * job // jobs, first + count * (job + 1) // jobs
        for facts in children(begin, end - begin, verbose):
            found.put(facts)
        found.put(None)

    for job in range(jobs):
        threading.Thread(target=follow, args=(job,), daemon=True).start()
    for _ in range(jobs):
        yield from iter(found.get, None)


def reported(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The lines of a child, until it ends. If it is silent for too long, it is aborted with a traceback.

    Seconds are counted one by one, so that time in which the whole machine was suspended does not count.
    """
    lines: queue.Queue[bytes] = queue.Queue()
    assert child.stdout is not None
    stream = child.stdout

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    silent = 0
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            silent += 1
            if silent == LIMIT:
                child.send_signal(signal.SIGABRT)  # faulthandler writes the traceback
            continue
        silent = 0
        if not line:
            child.wait()
            return
        yield json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=10_000, metavar="N", help="changes to try [10000]")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first [0]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="child processes at once [1]")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "fuzz_runs.json", metavar="FILE.json", help="[%(default)s]"
    )
    parser.add_argument("--verbose", action="store_true", help="show what every command says")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        work(arguments.first, arguments.mutations, arguments.verbose)
        return 0
    begun, machine = perf_counter(), describe()
    outcomes: dict[str, Counter[str]] = {}
    files, faults = Counter[str](), list[dict[str, Any]]()
    seen = set[int]()
    for found in together(arguments.first, arguments.mutations, arguments.jobs, arguments.verbose):
        number, what = found["number"], found.get("what", "")
        outcomes.setdefault(found.get("way", "between two commands"), Counter())[found["ended"]] += 1
        if number not in seen:
            seen.add(number)
            files[what.split(" ", 1)[-1].partition(":")[0]] += 1
            if len(seen) % 100 == 0:
                print(f"{len(seen)}  {perf_counter() - begun:.0f} s  {len(faults)} faults", flush=True)
        if found["fault"]:
            faults.append(found)
            print(f"{number} {found.get('way')}: {found['ended']} after {what}\n{found['fault']}", flush=True)
    result = {
        "command": f"python benchmarks/fuzz_runs.py --first {arguments.first} --mutations {arguments.mutations}",
        "machine": machine,
        "seconds": round(perf_counter() - begun),
        "mutations": sum(files.values()),
        "attempts": sum(counter.total() for counter in outcomes.values()),
        "by_file": dict(files.most_common()),
        "outcomes": {way: dict(counter.most_common()) for way, counter in outcomes.items()},
        "faults": faults,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['mutations']} changes, {result['attempts']} attempts, {len(faults)} faults: {arguments.out}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
