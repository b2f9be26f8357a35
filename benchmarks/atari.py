"""Does a game from pixels improve within minutes, and how fast is it? Trains and records the curve.

    python benchmarks/atari.py --game Pong --minutes 8 --device auto
    python benchmarks/atari.py --game Pong --minutes 8 --run-dir pong        # run it again to continue
    python benchmarks/atari.py --game Pong --vector --minutes 9 --device cuda --episodes 0 -- --precision tf32

Needs the extra: pip install "surefoot[atari]". The preset is the family's (`family/atari-ppo`), with more envs; flags
after `--` are passed on, after ours. With `--vector`, ale-py's own vector env plays (`atari:` ids) on all cores, with
the settings in `VECTOR`: larger batches, a higher rate. Before that, the speed of the games with random actions is
measured: alone, and begun and stepped as in a run.

Progress is printed as it comes, and results are written now and then, so a time limit loses little. They are merged
into benchmarks/results/atari_gpu.json, with a curve of at most 60 points for each game. Scores are those of whole games
during training and, at the end, of `--episodes` further ones with sampled actions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from surefoot.limits import usable_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "atari_gpu.json"
POINTS = 60
SECONDS = 4.0  # for each measurement of the games alone
LOOK = 10.0  # seconds between two looks at a run
KEEP = 3  # looks between two times that results are written
VECTOR = {  # the preset has 8 envs, a batch of 1,024 and minibatches of 256; this one is 8 times as large
    "total-steps": 8_000_000,
    "rollout-length": 64,
    "num-minibatches": 16,
    "learning-rate": 5e-4,
}
Row = dict[str, Any]


def surefoot(words: list[str], look: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What the command says in JSON. `look` is called now and then."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "surefoot.cli.main", *words, "--json"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                out, _ = process.communicate(timeout=LOOK)
                break
            except subprocess.TimeoutExpired:
                look()
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):  # which the run has got, too, and saves itself
            process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise SystemExit(process.returncode)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def read_rows(run: Path) -> list[Row]:
    """Step, seconds, return and episodes of every row of metrics in which a game ended."""
    logs = (run / "metrics.jsonl", run / "timings.jsonl")
    if not all(log.exists() for log in logs):  # no rows yet
        return []
    metrics, timings = (complete(log) for log in logs)
    rows, before = [], 0
    for row, timing in zip(metrics, timings, strict=False):  # one of them may have a row more while the run goes on
        ended, before = row["episodes"] - before, row["episodes"]
        if row["episode_return"] is not None and ended:
            rows.append(
                {
                    "step": row["step"],
                    "seconds": timing["seconds"],
                    "return": row["episode_return"],
                    "episodes": ended,
                    "ratio_error": row["ratio_error"],
                }
            )
    return rows


def complete(log: Path) -> list[Row]:
    """The rows that are written to their ends."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]


def thinned(rows: list[Row], points: int = POINTS) -> list[Row]:
    """Merge neighbouring rows; the return is the mean over their episodes."""
    size = -(-len(rows) // points)
    curve = []
    for begin in range(0, len(rows), max(size, 1)):
        part = rows[begin : begin + size]
        episodes = sum(row["episodes"] for row in part)
        curve.append(
            {
                "step": part[-1]["step"],
                "seconds": round(part[-1]["seconds"]),
                "return": round(sum(row["return"] * row["episodes"] for row in part) / episodes, 2),
                "episodes": episodes,
            }
        )
    return curve


def ceilings(arguments: argparse.Namespace) -> dict[str, int]:
    """Steps per second of the games with random actions: alone, and begun and stepped in parts as in a run."""
    import numpy as np

    from surefoot.envs.atari_envs import AtariEnvs
    from surefoot.envs.atari_games import make_ale
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import import_plugins

    import_plugins(f"ALE/{arguments.game}-v5")
    config, cores = EnvConfig(env=f"atari:{arguments.game}-v5"), usable_cores()
    size, rng = min(arguments.num_envs, 4 * cores), np.random.default_rng(0)  # each game takes 70 ms to load
    ale = make_ale(config, size, cores)
    number = ale.single_action_space.n  # type: ignore[attr-defined]
    ale.reset(seed=np.arange(size))
    alone = speed(lambda: ale.step(rng.integers(number, size=size)) and size)
    ale.close()
    envs = AtariEnvs(config, size, arguments.seed)
    envs.use_threads(cores, measure=False)
    envs.reset()
    own = size // len(envs.parts)
    for part in range(len(envs.parts)):
        envs.send(part, rng.integers(number, size=own))

    def step() -> int:
        answered = envs.answered()
        for part in answered:
            envs.take(part)
            envs.send(part, rng.integers(number, size=own))
        return own * len(answered)

    in_parts = speed(step)
    envs.close()
    return {"env_only_steps_per_second": alone, "in_parts_steps_per_second": in_parts}


def speed(step: Callable[[], int]) -> int:
    steps, start = 0, perf_counter()
    while perf_counter() - start < SECONDS:
        steps += step()
    return round(steps / (perf_counter() - start))


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{usable_cores()} cores of {platform.machine()}, {gpu}"


def train_words(arguments: argparse.Namespace, run: Path) -> list[str]:
    vector, num_envs = arguments.vector, arguments.num_envs
    words = ["train", f"{'atari:' if vector else 'ALE/'}{arguments.game}-v5", "--seed", str(arguments.seed)]
    words += ["--device", arguments.device, "--num-envs", str(num_envs), "--eval-episodes", "0"]
    if vector:
        words += ["--preset", "family/atari-ppo", "--threads", str(usable_cores())]
        words += [
            word for name, value in VECTOR.items() for word in (f"--{name}", f"{value:g}" if value < 1 else str(value))
        ]
    else:
        words += ["--workers", str(arguments.workers), "--num-minibatches", str(max(1, num_envs // 2))]
    return [*words, "--log-every", str(512 * num_envs), *arguments.flags, "--run-dir", str(run)]


class Watch:
    """Prints a run's progress, and keeps the results so far. `known`: what is known from the start."""

    def __init__(self, arguments: argparse.Namespace, run: Path, known: dict[str, Any]) -> None:
        self.arguments, self.run, self.known, self.shown, self.looks = arguments, run, known, 0, 0

    def __call__(self) -> None:
        rows, self.looks = read_rows(self.run), self.looks + 1
        for before, row in zip([None, *rows], rows, strict=False):
            if row["step"] > self.shown:
                recent = (row["step"] - before["step"]) / (row["seconds"] - before["seconds"]) if before else 0.0
                print(
                    f"{row['step']:>10,} steps {row['seconds']:>6.1f} s {recent:>8,.0f} steps/s"
                    f"  return {row['return']:8.2f} of {row['episodes']} games",
                    flush=True,
                )
        if rows:
            self.shown = rows[-1]["step"]
            if self.looks % KEEP == 0:
                found = {"steps": self.shown, "seconds": round(rows[-1]["seconds"]), "curve": thinned(rows)}
                keep(self.arguments, {**self.known, "unfinished": True, **found})


def measure(arguments: argparse.Namespace, run: Path) -> dict[str, Any]:
    limit, earlier = ["--max-time", f"{arguments.minutes:g}m"], read_results(arguments.out).get(key_of(arguments), {})
    bare = ceilings(arguments) if arguments.vector else {}
    for name, value in bare.items():
        print(f"{name.replace('_', ' ')}: {value:,}", flush=True)
    going_on = run.exists()
    words = [*(["resume", str(run)] if going_on else train_words(arguments, run)), *limit]
    commands = [*(earlier.get("commands", []) if going_on else []), typed(words, run)]
    known = {**bare, "commands": commands, "machine": machine(), "evaluation": None}
    watch, evaluation = Watch(arguments, run, known), None
    result = surefoot(words, watch)
    watch()
    if arguments.episodes:
        words = ["eval", str(run), "--stochastic", "--episodes", str(arguments.episodes)]
        evaluation = surefoot(words)
        commands.append(typed(words, run))
    rows = read_rows(run)
    return {
        **known,
        "steps": result["total_steps"],
        "seconds": round(result["seconds"]),
        "steps_per_second": round(result["steps_per_second"]),
        "time_split": {name: round(share, 3) for name, share in result["time_split"].items()},
        "largest_ratio_error": max((row["ratio_error"] for row in rows), default=None),
        "evaluation": evaluation
        and {name: evaluation[name] for name in ("mean_return", "std_return", "episodes", "returns")},
        "curve": thinned(rows),
    }


def typed(words: list[str], run: Path) -> str:
    """The command as a user would type it."""
    return shlex.join(["surefoot", *words]).replace(str(run), "RUN")


def key_of(arguments: argparse.Namespace) -> str:
    """Under which the results of a game are kept."""
    return f"{'atari:' if arguments.vector else ''}{arguments.game}"


def keep(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    results = read_results(arguments.out) | {key_of(arguments): found}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_results(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong", help="as in ALE/GAME-v5 [Pong]")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training [8]")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=None, help="[16; with --vector 128]")
    parser.add_argument("--vector", action="store_true", help="by ale-py's vector env")
    parser.add_argument("--workers", type=int, default=None, help="processes [a core each, at most one per env]")
    parser.add_argument("--episodes", type=int, default=10, help="of the evaluation at the end; 0: none")
    parser.add_argument("--run-dir", type=Path, default=None, help="where the run stays, to go on with it [nowhere]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="of `surefoot train`")
    arguments = parser.parse_args()
    arguments.num_envs = arguments.num_envs or (128 if arguments.vector else 16)
    arguments.workers = arguments.workers or min(usable_cores(), arguments.num_envs)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, arguments.run_dir or Path(folder) / "run")
    keep(arguments, found)
    print(f"{found['steps']:,} steps in {found['seconds']} s, {found['steps_per_second']:,} steps/s")
    print(found["time_split"])


if __name__ == "__main__":
    main()
