"""Does a game from pixels improve within minutes, and how fast is it? Trains and records the curve.

    python benchmarks/atari.py --game Pong --minutes 8 --device auto
    python benchmarks/atari.py --game Pong --minutes 8 --run-dir pong        # run it again to continue
    python benchmarks/atari.py --game Pong --vector --num-envs 128 --minutes 9 --device cuda -- --learning-rate 5e-4

Needs the extra: pip install "surefoot[atari]". The preset is the family's (`family/atari-ppo`), with more envs; flags
after `--` are passed on. With `--vector`, ale-py's own vector env plays (`atari:` ids), minibatches have 1024 samples
instead of 256, and the speed of the same games without a policy is measured besides: nothing can be faster.
Results are merged into benchmarks/results/atari_gpu.json, with a curve of at most 60 points for each game. Scores are
those of whole games during training and, at the end, of `--episodes` further ones with sampled actions.
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
from pathlib import Path
from time import perf_counter
from typing import Any

from surefoot.limits import usable_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "atari_gpu.json"
POINTS = 60
SECONDS = 10.0  # for the games alone
Row = dict[str, Any]


def surefoot(words: list[str]) -> tuple[str, dict[str, Any]]:
    """(the command as a user would type it, its JSON)."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "surefoot.cli.main", *words, "--json"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return shlex.join(["surefoot", *words]), json.loads(done.stdout.splitlines()[-1])


def read_rows(run: Path) -> list[Row]:
    """Step, seconds, return and episodes of every row of metrics in which a game ended."""
    logs = (run / "metrics.jsonl", run / "timings.jsonl")
    if not all(log.exists() for log in logs):  # no rows yet
        return []
    metrics, timings = ([json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] for log in logs)
    rows, before = [], 0
    for row, timing in zip(metrics, timings, strict=True):
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


def ceiling(arguments: argparse.Namespace) -> float:
    """Steps per second of the games alone, with random actions."""
    import numpy as np

    from surefoot.envs.atari_envs import Games
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import import_plugins

    import_plugins(f"ALE/{arguments.game}-v5")
    games = Games(EnvConfig(env=f"atari:{arguments.game}-v5"), arguments.num_envs, arguments.seed, 0)
    games.threads = min(usable_cores(), arguments.num_envs)
    number, rng, steps = games.single_action_space.n, np.random.default_rng(0), 0  # type: ignore[attr-defined]
    games.ale.reset()
    start = perf_counter()
    while perf_counter() - start < SECONDS:
        games.ale.step(rng.integers(number, size=arguments.num_envs))
        steps += arguments.num_envs
    return steps / (perf_counter() - start)


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{usable_cores()} cores of {platform.machine()}, {gpu}"


def measure(arguments: argparse.Namespace, run: Path) -> dict[str, Any]:
    limit = ["--max-time", f"{arguments.minutes:g}m"]
    earlier: dict[str, Any] = {}
    if run.exists():
        earlier = read_results(arguments.out).get(arguments.game, {})
        command, result = surefoot(["resume", str(run), *limit])
    else:
        vector, num_envs = arguments.vector, arguments.num_envs
        env = f"atari:{arguments.game}-v5" if vector else f"ALE/{arguments.game}-v5"
        words = ["train", env, "--seed", str(arguments.seed), "--device", arguments.device]
        words += ["--preset", "family/atari-ppo"] if vector else ["--workers", str(arguments.workers)]
        words += ["--num-envs", str(num_envs), "--num-minibatches", str(max(1, num_envs // (8 if vector else 2)))]
        words += ["--log-every", str(512 * num_envs), "--eval-episodes", "0", *arguments.flags]
        command, result = surefoot([*words, *limit, "--run-dir", str(run)])
    commands = [*earlier.get("commands", []), command]
    evaluation = None
    if arguments.episodes:
        command, evaluation = surefoot(["eval", str(run), "--stochastic", "--episodes", str(arguments.episodes)])
        commands.append(command)
    rows = read_rows(run)
    bare = {"env_only_steps_per_second": round(ceiling(arguments))} if arguments.vector else {}
    return {
        **bare,
        "commands": [text.replace(str(run), "RUN") for text in commands],
        "machine": machine(),
        "steps": result["total_steps"],
        "seconds": round(result["seconds"]),
        "steps_per_second": round(result["steps_per_second"]),
        "time_split": {name: round(share, 3) for name, share in result["time_split"].items()},
        "largest_ratio_error": max((row["ratio_error"] for row in rows), default=None),
        "evaluation": evaluation
        and {name: evaluation[name] for name in ("mean_return", "std_return", "episodes", "returns")},
        "curve": thinned(rows),
    }


def read_results(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Pong", help="as in ALE/GAME-v5 [Pong]")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training [8]")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--vector", action="store_true", help="by ale-py's vector env")
    parser.add_argument("--workers", type=int, default=None, help="processes [a core each, at most one per env]")
    parser.add_argument("--episodes", type=int, default=10, help="of the evaluation at the end; 0: none")
    parser.add_argument("--run-dir", type=Path, default=None, help="where the run stays, to go on with it [nowhere]")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="of `surefoot train`")
    arguments = parser.parse_args()
    arguments.workers = arguments.workers or min(usable_cores(), arguments.num_envs)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, arguments.run_dir or Path(folder) / "run")
    results = read_results(arguments.out) | {arguments.game: found}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    curve = found["curve"]
    for point in curve[:: max(1, len(curve) // 12)]:
        print(f"{point['step']:>10,} steps {point['seconds']:>5} s  return {point['return']:8.2f}")
    print(f"{found['steps']:,} steps in {found['seconds']} s, {found['steps_per_second']:,} steps/s")


if __name__ == "__main__":
    main()
