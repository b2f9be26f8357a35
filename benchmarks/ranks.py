"""What one run in several processes exchanges and gains, on this machine.

    python benchmarks/ranks.py [--only shared reductions updates speed] [--envs "1 ms a step"] [--engines native]
        [--ranks 1 2 3 4] [--rounds 5] [--seconds 8]

- shared: seconds per all-reduce by its bytes through shared memory, as processes of one machine do it;
- reductions: the same with gloo over loopback, as on several machines, and seconds per gather of a small object;
- updates: what an update costs by itself (env steps, acting, gradients) with different numbers of envs in one process,
  and what several processes exchange in an update with gloo (bytes, reductions, seconds);
- speed: env steps per second of two processes compared with one, one thread each, with the same envs. The sides
  alternate within each round, and ratios are taken round by round. Two separate runs at the same time, with half of the
  envs each, show how much of a second core this machine has to give.

The envs are HalfCheetah-v5 and one whose step does a fixed amount of work in Python that takes 1 ms on a free core (not
asleep, and not until a clock says so: if processes share a core, its steps take longer). Both are stepped in Python,
without workers. More ranks than cores share cores; the table says how many cores there were. What is not measured
again keeps its numbers in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import machine
from ranks_worker import WARM_UP, additions_for

HERE = Path(__file__).resolve().parent
PARTS = ("shared", "reductions", "updates", "speed")
SIZES = [64, 1024, 8192, 45_056, 262_144, 1_048_576, 4_194_304, 16_777_216]  # bytes; 45,056: a 64-64 actor and critic
LENGTH = 128  # of a rollout
ENVS = 16  # of one rank; with several ranks, of all
MINIBATCHES = 32
GUESSED = {"HalfCheetah-v5": 6_000, "1 ms a step": 950}  # steps per second, to choose the length of runs
# (envs, length of a rollout) whose speed is measured
SHAPES = {"HalfCheetah-v5": ((ENVS, LENGTH), (ENVS, 1024), (64, 256)), "1 ms a step": ((ENVS, LENGTH), (64, LENGTH))}


def envs(wanted: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Their ids and keyword arguments."""
    worker = HERE / "ranks_worker.py"
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "HalfCheetah-v5": (f"{worker}:cheetah", {}),
        "1 ms a step": (f"{worker}:Computing", {"additions": additions_for(1e-3)}),
    }
    return {name: found[name] for name in wanted}


def launched(ranks: int, task: dict[str, Any]) -> list[dict[str, Any]]:
    """What each of `ranks` processes of `ranks_worker.py` found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "task.json"
        file.write_text(json.dumps(task | {"run_dir": f"{folder}/run"}), encoding="utf-8")
        words = [str(HERE / "ranks_worker.py"), name, str(file)]
        if ranks > 1:
            words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(machine.ROOT)}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=name)
        if done.returncode:
            raise SystemExit(f"{ranks} processes failed:\n{done.stderr[-4000:]}")
        return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


def shared(arguments: argparse.Namespace) -> dict[str, Any]:
    return reductions(arguments, gloo=False)


def reductions(arguments: argparse.Namespace, *, gloo: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {}
    task = {"what": "reductions", "sizes": SIZES, "repeats": arguments.repeats, "gloo": gloo}
    for ranks in arguments.ranks:
        if ranks == 1:
            continue  # nothing is exchanged
        parts = launched(ranks, task)
        sums = {size: _quartiles([s for part in parts for s in part["sums"][str(size)]]) for size in SIZES}
        found[str(ranks)] = {"sums": sums, "gather": statistics.median(part["gather"] for part in parts)}
        print(f"{ranks} ranks: {sums[64]['median'] * 1e6:.0f} µs for 64 bytes", flush=True)
    return found


def _quartiles(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


def updates(arguments: argparse.Namespace) -> dict[str, Any]:
    """For each env: one process with different numbers of envs, then several processes with the same envs in all."""
    found: dict[str, Any] = {}
    for name, made in envs(arguments.envs).items():
        alone, together = {}, {}
        for num_envs in (ENVS // 4, ENVS, 4 * ENVS):
            number = max(WARM_UP + 3, arguments.updates * ENVS // max(num_envs, ENVS))
            alone[str(num_envs)] = _alone(launched(1, _task(*made, num_envs, number))[0]["updates"])
        for ranks in arguments.ranks:
            if ranks > 1:
                envs_of_all = ENVS // ranks * ranks
                parts = launched(ranks, _task(*made, envs_of_all, arguments.updates))
                together[str(ranks)] = _together(parts) | {"num_envs": envs_of_all}
                print(f"{name}, {ranks} ranks: {together[str(ranks)]['bytes']:,.0f} bytes per update", flush=True)
        found[name] = {"rollout_length": LENGTH, "minibatches": MINIBATCHES, "alone": alone, "together": together}
    return found


def _task(env: str, kwargs: dict[str, Any], num_envs: int, number: int) -> dict[str, Any]:
    settings = {"rollout_length": LENGTH, "num_envs": num_envs, "total_steps": LENGTH * num_envs * number, "seed": 0}
    settings |= {"num_minibatches": MINIBATCHES, "eval_episodes": 0, "workers": 0, "env_kwargs": kwargs}
    return {"what": "updates", "env": env, "algo": "ppo", "settings": settings, "gloo": True}


def _alone(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds per update and part, and how much rollouts vary."""
    means = {name: statistics.fmean(row[name] for row in rows) for name in ("seconds", "env", "act", "learn")}
    return means | {"rollout_cv": _variation([row["env"] + row["act"] for row in rows])}


def _variation(values: list[float]) -> float:
    """Coefficient of variation."""
    return statistics.stdev(values) / statistics.fmean(values)


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What an update exchanges, and how long the ranks are at it, which includes waiting for the slowest."""
    rows = [row for part in parts for row in part["updates"]]
    kinds: Counter[str] = Counter()
    largest = max(size for kind, size in rows[0]["exchanges"] if kind == "sum")
    for kind, size in (exchange for row in rows for exchange in row["exchanges"]):
        kinds["gradients" if (kind, size) == ("sum", largest) else kind] += 1
    return {
        "bytes": statistics.fmean(sum(size for _, size in row["exchanges"]) for row in rows),
        "gradient_bytes": largest,
        "object_bytes": statistics.fmean(size for row in rows for kind, size in row["exchanges"] if kind == "gather"),
        "exchanges": {kind: number / len(rows) for kind, number in sorted(kinds.items())},
        "gradient_cv": _variation([seconds for row in rows for seconds in row["gradients"]]),
        "seconds": statistics.fmean(row["seconds"] for row in rows),
        "exchange_seconds": statistics.fmean(row["waited"] for row in rows),
    }


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (env, kwargs) in envs(arguments.envs).items():
        for (number_of_envs, length), engine in product(SHAPES[name], arguments.engines):
            rollout = number_of_envs * length
            steps = max(2, round(GUESSED[name] * arguments.seconds / rollout)) * rollout
            flags = f"--rollout-length {length} --engine {engine}"
            rounds = []
            for number in range(arguments.rounds):
                one = partial(_speed, env, kwargs, flags, number)
                sides: dict[str, Callable[[], float]] = {
                    "1": partial(one, number_of_envs, steps, 1),
                    "2": partial(one, number_of_envs, steps, 2),
                    "apart": partial(_apart, partial(one, number_of_envs // 2, steps // 2, 1)),
                }
                order = list(sides) if number % 2 == 0 else list(sides)[::-1]
                rounds.append({side: sides[side]() for side in order})
                said = ", ".join(f"{rounds[-1][side]:,.0f}" for side in sides)
                print(f"{name}, {number_of_envs} envs, {flags}: {said} steps/s", flush=True)
            found[f"{name}, {number_of_envs} × {length}, {engine}"] = {
                "flags": f"--num-envs {number_of_envs} --total-steps {steps} {flags}",
                "steps_per_second": {side: machine.spread([r[side] for r in rounds]) for side in rounds[0]},
                "ratio": machine.spread([r["2"] / r["1"] for r in rounds]),
                "ratio_apart": machine.spread([r["apart"] / r["1"] for r in rounds]),
                "rounds": rounds,
            }
    return found


def _apart(one: Callable[[], float]) -> float:
    """Two separate runs at the same time: their steps per second together."""
    with ThreadPoolExecutor(2) as pool:
        return sum(future.result() for future in [pool.submit(one) for _ in range(2)])


def _speed(env: str, kwargs: dict[str, Any], flags: str, seed: int, num_envs: int, steps: int, ranks: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "surefoot", "train", env, "--env-kwargs", json.dumps(kwargs), *flags.split()]
        words += ["--num-envs", str(num_envs), "--total-steps", str(steps)]
        words += ["--preset", "none", "--seed", str(seed), "--ranks", str(ranks), "--threads", "1", "--workers", "0"]
        words += ["--eval-episodes", "0", "--json", "--run-dir", f"{folder}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(machine.ROOT)}
        run = subprocess.run(words, capture_output=True, text=True, env=environment)
    if run.returncode:
        raise SystemExit(f"{' '.join(words)}\nfailed:\n{run.stderr[-4000:]}")
    line = next(line for line in run.stdout.splitlines() if line.startswith("{"))
    return float(json.loads(line)["steps_per_second"])


def table(result: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "speed" in result:
        titles = ("one process, steps/s", "two processes", "ratio", "two separate runs, ratio")
        lines += machine.head("envs × steps of a rollout", *titles)
        for name, found in result["speed"]["found"].items():
            one, two = (found["steps_per_second"][side]["median"] for side in ("1", "2"))
            ratios = (machine.ratio(found[kind]) for kind in ("ratio", "ratio_apart"))
            lines.append(machine.row(name, f"{one:,.0f}", f"{two:,.0f}", *ratios))
    for part, how in (("shared", "in shared memory"), ("reductions", "by gloo")):
        if part not in result:
            continue
        found = result[part]["found"]
        lines += ["", *machine.head(f"bytes reduced {how}", *(f"{ranks} ranks, µs" for ranks in found))]
        for size in SIZES:
            cells = (f"{own['sums'][str(size)]['median'] * 1e6:,.0f}" for own in found.values())
            lines.append(machine.row(f"{size:,}", *cells))
        gathers = (f"{own['gather'] * 1e6:,.0f}" for own in found.values())
        if part == "reductions":  # both do it by gloo
            lines.append(machine.row("gather of a small object", *gathers))
    if "updates" in result:
        titles = ("ranks", "bytes per update", "gradients", "other exchanges", "ms per update", "of it exchange")
        lines += ["", *machine.head("env", *titles)]
        for name, found in result["updates"]["found"].items():
            for ranks, own in found["together"].items():
                other = sum(own["exchanges"].values()) - own["exchanges"]["gradients"]
                cells = (f"{own['bytes']:,.0f}", f"{own['exchanges']['gradients']:.0f}", f"{other:.0f}")
                times = (f"{1e3 * own['seconds']:.0f}", f"{100 * own['exchange_seconds'] / own['seconds']:.0f} %")
                lines.append(machine.row(name, ranks, *cells, *times))
    return lines[1:] if lines and not lines[0] else lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--envs", nargs="*", choices=list(GUESSED), default=list(GUESSED))
    parser.add_argument("--ranks", nargs="*", type=int, default=[1, 2, 3, 4], help="of reductions and updates [1 to 4]")
    parser.add_argument("--rounds", type=int, default=5, help="of the speed [5]")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run of the speed, about [8]")
    parser.add_argument("--engines", nargs="*", default=["native", "torch"], choices=["native", "torch"])
    parser.add_argument("--repeats", type=int, default=200, help="of each reduction [200]")
    parser.add_argument("--updates", type=int, default=20, help="of each training run [20]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "ranks.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    for part in arguments.only:
        described = machine.describe()
        found = {"shared": shared, "reductions": reductions, "updates": updates, "speed": speed}[part](arguments)
        kept = result.get(part, {}).get("found", {})
        result |= {"machine": described, part: {"machine": described, "found": kept | found}}
        result = json.loads(json.dumps(result))  # numbers as keys become text, as in the file
        machine.write(result, table(result), arguments.out)  # after every part


if __name__ == "__main__":
    main()
