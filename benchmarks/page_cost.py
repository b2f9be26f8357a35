"""Does training slow down when the page shows it?

    python benchmarks/page_cost.py [--rounds 8]

The same run with one thread, again and again: alone, with `surefoot ui` and a browser on this machine that shows its
curves as they grow, and with the server but a reader that only follows its events (a browser on another machine).
Each round has all three, in changing order. The ratio is that of a round's steps per second to those of the run alone
in the same round. Training beside the page should keep 98 %. Needs Debian's `chromium` and `chromium-driver`, and
`pip install selenium`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from urllib.parse import urlencode

import machine
from screenshots import chromium, wait_for

SIDES = ("alone", "page in a browser here", "events only")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SETTINGS = ["--preset", "none", "--num-envs", "8", "--threads", "1", "--engine", "native", "--eval-episodes", "0"]


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """`surefoot ui` over this folder: its address."""
    words = [sys.executable, "-m", "surefoot", "ui", "--runs", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None, "the server did not start"
        try:
            yield found[0]
        finally:
            process.terminate()


@contextmanager
def browser(address: str) -> Iterator[None]:
    """Shows the run's charts, which then grow."""
    driver = chromium(1400, 900)
    try:
        driver.get(f"{address}#{urlencode({'run': 'run', 'focus': 'run', 'tab': 'curves'})}")
        wait_for(lambda: driver.execute_script("return document.querySelector('#view') !== null"))
        yield
        charts = driver.execute_script("return document.querySelectorAll('.plot .scatterlayer').length")
        assert charts > 0, "the page showed no chart"
    finally:
        driver.quit()


@contextmanager
def reader(address: str) -> Iterator[None]:
    """Reads the server's events until the server ends."""

    def read() -> None:
        try:
            with urllib.request.urlopen(f"{address}/api/events") as stream:
                while stream.readline():
                    pass
        except OSError:
            pass

    Thread(target=read, daemon=True).start()
    yield


def steps_per_second(side: str, env: str, steps: int) -> float:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if side != "alone":
            address = stack.enter_context(server(folder)).rstrip("/")
            stack.enter_context((browser if side == SIDES[1] else reader)(address))
        words = ["train", env, *SETTINGS, "--total-steps", str(steps), "--run-dir", str(folder / "run")]
        subprocess.run([sys.executable, "-m", "surefoot", *words], check=True, capture_output=True, env=ENVIRONMENT)
        result = json.loads((folder / "run" / "result.json").read_text(encoding="utf-8"))
    return float(result["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "page_cost.json", metavar="FILE.json")
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        order = [SIDES[(number + place) % len(SIDES)] for place in range(len(SIDES))]
        rounds.append({side: steps_per_second(side, arguments.env, arguments.steps) for side in order})
        print({side: round(rounds[-1][side]) for side in SIDES}, flush=True)
    table = machine.head("beside the run", "steps per second (median)", "of the run alone (median)", "from", "to")
    result = {
        "command": f"python benchmarks/page_cost.py --rounds {arguments.rounds}",
        "machine": machine.describe(),
        "env": arguments.env,
        "steps": arguments.steps,
        "rounds": rounds,
    }
    for side in SIDES:
        ratios = [speeds[side] / speeds["alone"] for speeds in rounds]
        speed = f"{median(speeds[side] for speeds in rounds):,.0f}"
        table.append(machine.row(side, speed, *(f"{x:.3f}" for x in (median(ratios), min(ratios), max(ratios)))))
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
