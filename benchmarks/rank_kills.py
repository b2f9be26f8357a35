"""Kills processes of runs in several processes at random moments; torchrun restarts them, and no byte may differ.

    python benchmarks/rank_kills.py [--kills 20] [--ranks 2] [--seed 0]

Each case is trained once in peace. Then it is trained again under `torchrun --max-restarts`, and four times one of its
processes gets a SIGKILL: any of them, after up to 70 % of the time that the peaceful run took. In the end metrics,
weights and the whole state must be those of the peaceful run. The result goes to `benchmarks/results/rank_kills.json`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import machine

CASES = {
    "ppo, native engine": "CartPole-v1 --algo ppo --engine native",
    "ppo, PyTorch, gru, normalised": "CartPole-v1 --algo ppo --memory gru --engine torch --normalize-observations "
    "--normalize-rewards",
    "trpo, native engine": "Pendulum-v1 --algo trpo --engine native",
    "a2c, envs stepped in Python": "Acrobot-v1 --algo a2c --rollout-length 64 --frame-stack 2",
    "reinforce, whole episodes": "CartPole-v1 --algo reinforce",
}
USUAL = "--preset none --seed 1 --num-envs 8 --eval-episodes 0 --checkpoint-every 2000 --total-steps"
EACH = 4  # kills per run
LIMIT = 900  # seconds; a run that takes longer hangs


def words(case: str, steps: int, folder: Path) -> list[str]:
    return ["surefoot", "train", *CASES[case].split(), *USUAL.split(), str(steps), "--run-dir", str(folder)]


def torchrun(ranks: int, restarts: int, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "SUREFOOT_RANK_TIMEOUT": "120"}
    with open(log, "wb") as file:
        return subprocess.Popen(
            [*launcher, f"--max-restarts={restarts}", "-m", *command], stdout=file, stderr=file, env=own
        )


def children(pid: int) -> list[int]:
    """The ranks, which torchrun starts one after the other."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in found}
    return [child for child, line in lines.items() if b"surefoot" in line]


def kill(process: subprocess.Popen[bytes], delay: float, rng: Random, gone: set[int]) -> str | None:
    """Kill one of its processes after this delay, counted from when they are there. None: the run ended before."""
    begin = monotonic()
    while process.poll() is None:
        living = [child for child in children(process.pid) if child not in gone]
        if not living:
            begin = monotonic()
        elif monotonic() - begin >= delay:
            victim = rng.choice(living)
            gone |= set(living)  # torchrun ends the others and starts new ones
            os.kill(victim, signal.SIGKILL)
            return f"process {living.index(victim)} after {delay:.1f} s"
        sleep(0.02)
    return None


def end_of(folder: Path) -> dict[str, bytes]:
    """What must be equal: the metrics and the last checkpoint. Other files have times in them."""
    newest = folder / "checkpoints" / (folder / "checkpoints" / "LATEST").read_text(encoding="utf-8").strip()
    files = (folder / "metrics.jsonl", newest / "policy.safetensors", newest / "state.safetensors")
    return {file.name: file.read_bytes() for file in files}


def attack(case: str, arguments: argparse.Namespace, rng: Random, room: Path) -> dict[str, Any]:
    """Train a case in peace and under attack."""
    begin = monotonic()
    peaceful = torchrun(arguments.ranks, 0, words(case, arguments.steps, room / "peaceful"), room / "peaceful.log")
    if peaceful.wait(LIMIT):
        raise SystemExit((room / "peaceful.log").read_text(encoding="utf-8", errors="replace"))
    seconds = monotonic() - begin
    attacked = torchrun(
        arguments.ranks, EACH + 1, words(case, arguments.steps, room / "attacked"), room / "attacked.log"
    )
    kills, gone = list[str](), set[int]()
    while len(kills) < EACH:
        found = kill(attacked, rng.uniform(0.0, 0.7 * seconds), rng, gone)
        if found is None:
            break
        kills.append(found)
    code = attacked.wait(LIMIT)
    differ = ["exit code"] if code else []
    if not code:
        before, after = end_of(room / "peaceful"), end_of(room / "attacked")
        differ = [name for name in before if before[name] != after[name]]
    if differ:
        print((room / "attacked.log").read_text(encoding="utf-8", errors="replace")[-6000:])
    return {"case": case, "kills": kills, "differs": differ, "seconds_in_peace": round(seconds, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="altogether [20]")
    parser.add_argument("--ranks", type=int, default=2, help="processes of a run [2]")
    parser.add_argument("--steps", type=int, default=60_000, help="of each run [60000]")
    parser.add_argument("--seed", type=int, default=0, help="of the moments [0]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "rank_kills.json", metavar="FILE.json")
    arguments = parser.parse_args()
    rng, runs, table = Random(arguments.seed), list[dict[str, Any]](), machine.head("run", "kills", "differs")
    while sum(len(run["kills"]) for run in runs) < arguments.kills:
        case = list(CASES)[len(runs) % len(CASES)]
        with tempfile.TemporaryDirectory() as room:
            runs.append(attack(case, arguments, rng, Path(room)))
        run = runs[-1]
        table.append(machine.row(case, len(run["kills"]), ", ".join(run["differs"]) or "nothing"))
        print(table[-1], *run["kills"], sep="\n    ", flush=True)
    kills, equal = sum(len(run["kills"]) for run in runs), not any(run["differs"] for run in runs)
    result = {"machine": machine.describe(), "ranks": arguments.ranks, "kills": kills, "all_equal": equal, "runs": runs}
    machine.write(result, table, arguments.out)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
