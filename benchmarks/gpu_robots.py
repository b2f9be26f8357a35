"""Robots' setting on a GPU: the time of an update beside rsl-rl-lib and skrl, in one run.

    python benchmarks/gpu_robots.py --peers DIR                # DIR: what make_peers.sh made
    python benchmarks/gpu_robots.py --path DIR                 # or a folder with the packages of both
    python benchmarks/gpu_robots.py --peers DIR --device cpu --num-envs 64 --updates 2 --out /tmp/try.json  # a try

A stub simulator with 48 observations and 12 actions on the device (`peers/robots.py`), 4096 envs × 24 steps, 5 epochs
of 4 minibatches, 512-256-128 ELU, observations normalised; in float32 and with TensorFloat-32 for all. An update is the
rollout and all that is learned from it. Each measurement is a process of its own, and they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
from peers.robots import EPOCHS, HIDDEN, LENGTH, MINIBATCHES, RATE, WARM

PEERS = Path(__file__).parent / "peers" / "robots.py"
SIDES, PRECISIONS = ("ours", "rsl", "skrl"), ("float32", "tf32")


def ours(num_envs: int, updates: int, device: str, precision: str) -> float:
    """Seconds of an update."""
    import torch
    from gpu import QUIET, Clock
    from gpu_envs import Robots

    import surefoot

    torch.set_num_threads(1)
    clock, steps = Clock(), num_envs * LENGTH
    with tempfile.TemporaryDirectory() as folder:
        surefoot.train(
            Robots(num_envs, device), run_dir=Path(folder) / "run", seed=0, total_steps=(WARM + updates) * steps,
            log_every=10 * steps, callbacks=[clock], precision=precision, rollout_length=LENGTH, num_epochs=EPOCHS,
            num_minibatches=MINIBATCHES, hidden_sizes=HIDDEN, activation="elu", learning_rate=RATE,
            normalize_observations=True, **QUIET,
        )  # fmt: skip
    (began, _), (ended, _) = clock.marks[WARM - 1], clock.marks[-1]
    return (ended - began) / updates


def measure(side: str, precision: str, args: argparse.Namespace) -> float:
    options = {"num_envs": args.num_envs, "updates": args.updates, "device": args.device}
    if side == "ours":
        words = [sys.executable, __file__, "--ours", json.dumps({**options, "precision": precision})]
    else:
        python = str(args.peers / side / "bin" / "python") if args.peers else sys.executable
        words = [python, str(PEERS), side, json.dumps({**options, "tf32": precision == "tf32"})]
    path = [str(args.path.absolute())] if args.path else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, metavar="DIR", help="with rsl/bin/python and skrl/bin/python")
    parser.add_argument("--path", type=Path, metavar="DIR", help="where this Python finds the packages of both")
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-envs", type=int, default=4096, metavar="N")
    parser.add_argument("--updates", type=int, default=50, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "gpu_robots.json", metavar="FILE.json")
    parser.add_argument("--ours", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        print(json.dumps({"seconds": ours(**args.ours)}))
        return
    precisions = PRECISIONS if args.device != "cpu" else PRECISIONS[:1]
    found: dict[str, dict[str, list[float]]] = {one: {side: [] for side in args.side} for one in precisions}
    result = {"machine": machine.describe(), "seconds": found}
    for _ in range(args.rounds):
        for precision in precisions:
            for side in args.side:
                found[precision][side].append(measure(side, precision, args))
                print(f"{precision:8} {side:5} {1e3 * found[precision][side][-1]:8.1f} ms", flush=True)
                machine.keep(result, args.out)  # what a time limit leaves of a run
    machine.write(result, table(found), args.out)


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = machine.head("an update", *(f"{side}, ms" for side in next(iter(found.values()))), "times ours")
    for precision, sides in found.items():
        cells: list[Any] = [f"{1e3 * machine.spread(times)['median']:.1f}" for times in sides.values()]
        faster = [
            machine.ratio(machine.spread([one / own for one, own in zip(times, sides["ours"], strict=True)]))
            for side, times in sides.items()
            if side != "ours" and "ours" in sides
        ]
        lines.append(machine.row(precision, *cells, ", ".join(faster)))
    return lines


if __name__ == "__main__":
    main()
