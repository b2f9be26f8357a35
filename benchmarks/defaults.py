"""How well the library's defaults learn tasks that they were not tuned for, compared with Stable-Baselines3's defaults.

    python benchmarks/defaults.py --algo ppo                         # as they are now, all tasks, seeds 0 to 4
    python benchmarks/defaults.py --algo ppo --side before           # as they were before this study
    python benchmarks/defaults.py --algo ppo --side sb3 --peers DIR  # DIR: what make_peers.sh made
    python benchmarks/defaults.py --algo ppo --try num_minibatches=8,learning_rate=1e-3 --seeds 100 101
    python benchmarks/defaults.py --page-only                        # rewrite the page from the stored results

A score is the mean return of 20 greedy episodes with the final weights. Candidates (`--try`) were compared on seeds
from 100 on; the page reports seeds 0 to 4. Results are merged into benchmarks/results/defaults.json as they arrive,
and docs/defaults.md is written from that file. Every run has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

from defaults_page import Runs, page
from peers.untuned import TASKS, TOY_STEPS, make

from surefoot.algorithms import ALGORITHMS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "defaults.json"
PAGE = HERE.parent / "docs" / "defaults.md"
EPISODES = 20

# The previous values of the defaults that this study changed.
BEFORE: dict[str, dict[str, Any]] = {
    "npg": {"value_minibatches": 4},
    "trpo": {"value_minibatches": 4},
    "ppo-penalty": {"num_minibatches": 4},
    "ppo": {"num_minibatches": 4},
}

Scores: TypeAlias = dict[str, dict[str, Runs]]  # {algo: {side: {task: {seed: score}}}}


def train_ours(algo: str, settings: dict[str, Any], task: str, seed: int) -> float:
    """Train with the library's defaults except for `settings`; returns the score of greedy episodes."""
    from surefoot.training.config.resolve import resolve
    from surefoot.training.evaluation.evaluate import evaluate_agent
    from surefoot.training.trainer import Trainer

    own = {"threads": 1, "total_steps": TASKS[task].steps}
    if algo == "reinforce" and TASKS[task].toy:  # Gymnasium does not know its time limit
        own["max_episode_steps"] = TOY_STEPS
    factory = partial(make, task) if TASKS[task].toy else None
    config = resolve(task if factory else TASKS[task].env, algo, preset="none", overrides=own | settings)
    trainer = Trainer(config, seed, factory=factory)
    trainer.train()
    trainer.envs.close()
    return evaluate_agent(trainer.agent, partial(make, task), episodes=EPISODES, seed=seed).mean_return


def train_theirs(peers: Path, algo: str, task: str, seed: int) -> float:
    """The same with Stable-Baselines3's defaults, in its own environment."""
    python, script = peers / "sb3" / "bin" / "python", HERE / "peers" / "sb3_defaults.py"
    words = [str(python), str(script), algo, task, str(seed), str(EPISODES)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["mean_return"])


def read_results() -> dict[str, Scores]:
    """What earlier runs measured: `reported` (sides: before, now, sb3) and `tried` (sides: settings)."""
    if not RESULTS.exists():
        return {"reported": {}, "tried": {}}
    results: dict[str, Scores] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def write_results(results: dict[str, Scores]) -> None:
    """Replace the file in one step: an interrupted study loses nothing."""
    partial_file = RESULTS.with_suffix(".partial")
    partial_file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial_file.replace(RESULTS)


def measure(
    train: Callable[[str, int], float],
    found: dict[str, dict[str, float]],
    tasks: Iterable[str],
    seeds: list[int],
    jobs: int,
) -> Iterable[str]:
    """Measure what is missing in `found`; yields a line after each run."""
    missing = [(task, seed) for seed in seeds for task in tasks if str(seed) not in found.get(task, {})]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: dict[Future[float], tuple[str, int]] = {pool.submit(train, *one): one for one in missing}
        for future in as_completed(running):
            task, seed = running[future]
            score = found.setdefault(task, {})[str(seed)] = round(future.result(), 3)
            yield f"{task:18} seed {seed} {score:9.2f}"


def parse_settings(text: str) -> dict[str, Any]:
    """`a=1,b=2`."""
    return dict(pair.split("=", 1) for pair in text.split(",") if pair)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Study the defaults on tasks that they were not tuned for.")
    parser.add_argument("--algo", nargs="+", choices=list(ALGORITHMS), default=["ppo"])
    parser.add_argument("--side", choices=["before", "now", "sb3"], default="now")
    parser.add_argument("--try", dest="tried", metavar="A=1,B=2", help="defaults with these settings instead of a side")
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="S")
    parser.add_argument("--peers", type=Path, help="folder with the environments of make_peers.sh, for --side sb3")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--page-only", action="store_true", help="train nothing, rewrite the page")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    results = read_results()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for algo in [] if arguments.page_only else arguments.algo:
        if arguments.tried is not None:
            train: Any = partial(train_ours, algo, parse_settings(arguments.tried))
            found = results["tried"].setdefault(algo, {}).setdefault(arguments.tried, {})
        else:
            if arguments.side == "sb3":
                train = partial(train_theirs, arguments.peers, algo)
            else:
                train = partial(train_ours, algo, BEFORE.get(algo, {}) if arguments.side == "before" else {})
            found = results["reported"].setdefault(algo, {}).setdefault(arguments.side, {})
        for line in measure(train, found, arguments.task, arguments.seeds, arguments.jobs):
            print(f"{algo:12} {arguments.tried or arguments.side:8} {line}", flush=True)
            write_results(results)
    PAGE.write_text(page(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
