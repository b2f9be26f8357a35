"""Train every preset, play 100 greedy episodes with its final weights, and record the scores.

    python benchmarks/presets.py                                  # all presets, seeds 0 1 2
    python benchmarks/presets.py --preset CartPole-v1/ppo --seeds 0 1 2 3 4
    python benchmarks/presets.py --page-only                      # rewrite the page from the stored results

Results are merged into benchmarks/results/presets.json as they arrive; docs/presets.md is written from that
file. Every run is a separate process with one thread: runs share no state and do not compete for cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeAlias

from surefoot.algorithms import ALGORITHMS
from surefoot.training.config import presets as stored
from surefoot.training.config.presets import load_preset

ROOT = Path(__file__).resolve().parent.parent


def list_presets() -> list[str]:
    """Presets for a single env; the defaults of a family name none."""
    return [name for name in stored.list_presets() if "env" in load_preset(name)]


RESULTS = ROOT / "benchmarks" / "results" / "presets.json"
ATARI = ROOT / "benchmarks" / "results" / "atari_gpu.json"
PAGE = ROOT / "docs" / "presets.md"
EPISODES = 100
FRESH = 100  # seeds from here on are reported apart
GIVEN = ("homework", "lecture")
ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")

# Pairs without a preset: settings that were tried, and their results. The page lists them below the table.
NOT_LEARNED: dict[tuple[str, str], str] = {
    ("MountainCar-v0", "reinforce"): (
        "16 episodes per update, rate 3e-3, 500k steps: -200.0; 32 episodes, rate 0.01, an entropy bonus: "
        "the same. The training return stayed at -200 (seed 0)."
    ),
    ("Pendulum-v1", "reinforce"): (
        "1M steps: 8 episodes per update, γ = 0.9, rate 5e-3: -1182.5; 4 episodes, γ = 0.95, rate 2e-3: "
        "-1026.7 (seed 0)."
    ),
    ("Pendulum-v1", "vpg"): (
        "8 envs × 16 steps, rate 3e-3, 1M steps: -179.1 on seed 0, but -1083.1 and -994.0 on seeds 1 and 2; "
        "a faster critic: -1039.9 on seed 1; 16 × 16, rate 2e-3, 500k steps: -1079.3 on seed 0."
    ),
    ("Pendulum-v1", "a2c"): (
        "the zoo's numbers without gSDE, 500k steps: -1013.1; rate 3e-3: -226.2 at 500k steps, -201.6 at "
        "800k (seed 0), -263.8 at 1M (seed 1); standardised advantages, 1M steps: -321.1 (seed 0)."
    ),
}

INTRODUCTION = """\
# Presets and their scores

A preset is a file of settings that is known to learn its environment. Each number below comes from training
with the unmodified preset and then playing 100 greedy episodes with the final weights, not the best checkpoint
or the training curve. The tuned settings were chosen by their scores on these same seeds, so expect slightly
lower scores on others. Cells show *mean over the seeds / worst seed / environment steps*.
"""

Results: TypeAlias = dict[str, Any]  # {"presets": {name: {seed: measurement}}, "random": {env: measurement}}


def measure(preset: str, seed: int) -> dict[str, float]:
    """Train a preset from one seed and evaluate the final weights."""
    from surefoot.envs.make import make_env
    from surefoot.training.config.resolve import resolve
    from surefoot.training.evaluation.evaluate import evaluate_agent
    from surefoot.training.trainer import Trainer

    config = resolve(preset=preset)
    trainer = Trainer(config, seed)
    trainer.train()
    evaluation = evaluate_agent(trainer.agent, lambda: make_env(config.env), episodes=EPISODES, seed=seed)
    return {
        "mean_return": evaluation.mean_return,
        "std_return": evaluation.std_return,
        "steps": trainer.step,
        "seconds": round(trainer.seconds, 2),
        "steps_per_second": round(trainer.steps_per_second),
    }


def measure_random(env_id: str) -> dict[str, float]:
    """The score of uniformly random actions."""
    import gymnasium as gym
    import numpy as np

    env = gym.make(env_id, disable_env_checker=True)
    env.action_space.seed(0)
    returns = []
    for episode in range(EPISODES):
        env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return {"mean_return": float(np.mean(returns)), "std_return": float(np.std(returns))}


def measure_apart(preset: str, seed: int) -> dict[str, float]:
    """`measure` in a separate process, with one thread."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__, "--measure", preset, str(seed)],
        env={**os.environ, **threads, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measurement: dict[str, float] = json.loads(done.stdout)
    return measurement


def read_results() -> Results:
    """The results of earlier runs."""
    if not RESULTS.exists():
        return {"presets": {}, "random": {}}
    results: Results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def write_results(results: Results) -> None:
    """Replace the file in one step: an interrupted run loses nothing."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(RESULTS)


def measure_all(presets: Iterable[str], seeds: Iterable[int], jobs: int, results: Results) -> list[str]:
    """Run every preset with every seed, `jobs` at a time; returns a line per failure."""
    wanted = [(preset, seed) for preset in presets for seed in seeds]
    for env_id in sorted({str(load_preset(preset)["env"]) for preset, _ in wanted} - set(results["random"])):
        results["random"][env_id] = measure_random(env_id)
    failures = []
    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[dict[str, float]], tuple[str, int]] = {
            pool.submit(measure_apart, preset, seed): (preset, seed) for preset, seed in wanted
        }
        for future in as_completed(running):
            preset, seed = running[future]
            try:
                measurement = future.result()
            except subprocess.CalledProcessError as error:
                failures.append(f"{preset}, seed {seed}: exit status {error.returncode}")
                continue
            results["presets"].setdefault(preset, {})[str(seed)] = measurement
            write_results(results)
            score, seconds = measurement["mean_return"], measurement["seconds"]
            print(f"{preset:40} seed {seed} {score:9.1f} {seconds:8.1f} s", flush=True)
    return failures


def short_count(steps: float) -> str:
    """100000 → 100k, 1_500_000 → 1.5M."""
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def cell(measured: Mapping[str, Mapping[str, float]], total_steps: float) -> str:
    """Mean over the seeds / worst seed / steps."""
    means = [one["mean_return"] for seed, one in measured.items() if int(seed) < FRESH]
    return f"{sum(means) / len(means):.1f} / {min(means):.1f} / {short_count(total_steps)}"


def fresh_seeds(results: Results) -> list[str]:
    """A line for each preset that was also trained on further seeds."""
    lines = []
    for name, measured in sorted(results["presets"].items()):
        found = sorted((int(seed), one["mean_return"]) for seed, one in measured.items() if int(seed) >= FRESH)
        if found:
            scores = [score for _, score in found]
            seeds = f"{len(found)} seeds, {found[0][0]} to {found[-1][0]}"
            lines.append(f"- **{name}**: {sum(scores) / len(scores):.1f} / {min(scores):.1f} ({seeds})")
    if not lines:
        return []
    said = f"On further seeds (from {FRESH} on), mean and worst:"
    return ["", said, "", *lines]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table whose first column is text and whose others are numbers."""
    header = list(header)
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def tuned_table(results: Results) -> list[str]:
    """A row per algorithm, a column per env, and a first row with the scores of random play."""
    names, measured, random = set(list_presets()), results["presets"], results["random"]

    def entry(env_id: str, algo: str) -> str:
        name = f"{env_id}/{algo}"
        if name not in names:
            return "–"
        return cell(measured[name], load_preset(name)["total_steps"]) if name in measured else "not measured"

    first = ["*random play*", *(f"{random[e]['mean_return']:.1f}" if e in random else "" for e in ENVS)]
    rows = [[algo, *(entry(env_id, algo) for env_id in ENVS)] for algo in ALGORITHMS]
    return table(["", *ENVS], [first, *rows])


def rows_table(results: Results, *, given: bool) -> list[str]:
    """A row for each preset with given settings, or for an env beyond classic control."""
    rows = []
    for name in list_presets():
        settings, measured = load_preset(name), results["presets"].get(name)
        folder = name.split("/")[0]
        if folder not in ENVS and (folder in GIVEN) == given and measured:
            usual = sorted((seed, one) for seed, one in measured.items() if int(seed) < FRESH)
            seeds = ", ".join(f"{one['mean_return']:.1f}" for _, one in usual)
            reached = cell(measured, settings["total_steps"])
            rows.append([name, settings["env"], settings["algo"], reached, seeds])
    return table(["", "Environment", "Algorithm", "Mean / worst / steps", "Each seed"], rows)


def failures_list() -> list[str]:
    """The pairs shown as an en dash in the table."""
    if not NOT_LEARNED:
        return []
    tried = [f"- **{algo} on {env_id}**: {what}" for (env_id, algo), what in NOT_LEARNED.items()]
    return ["", "An en dash means that no settings were found that learn reliably:", "", *tried]


def atari_table() -> list[str]:
    """The scores of the family's defaults on a game after some minutes, measured by `atari.py`."""
    if not ATARI.exists():
        return []
    games = json.loads(ATARI.read_text(encoding="utf-8"))
    rows = []
    for game, found in sorted(games.items()):
        if found.get("unfinished") or game.startswith("atari:"):  # other settings
            continue
        first, last, final = found["curve"][0], found["curve"][-1], found["evaluation"]
        played = f"{final['mean_return']:.1f} over {final['episodes']}" if final else "–"
        time = f"{short_count(found['steps'])} in {found['seconds'] / 60:.0f} min"
        rows.append([f"ALE/{game}-v5", f"{first['return']:.1f}", f"{last['return']:.1f}", played, time])
    return [
        "",
        "## Atari from pixels\n",
        "`family/atari-ppo` with 16 envs, one seed, stopped by the clock long before its ten million steps. This\n"
        "shows that it learns, not how far it gets. Mean scores of whole games: the first and last in training,\n"
        "and an evaluation with sampled actions. Both games trained at the same time, on 16 cores and one GPU.\n",
        "```\npython benchmarks/atari.py --game Pong --minutes 8\n```\n",
        *table(["", "First", "Last", "Evaluated", "Steps"], rows),
    ]


def page(results: Results) -> str:
    """docs/presets.md."""
    parts = [
        INTRODUCTION,
        "```\npython benchmarks/presets.py\n```\n",
        "To reproduce one cell: `surefoot train CartPole-v1 --algo trpo --seed 0`, or for the given presets\n"
        "`surefoot train --preset homework/vpg --seed 0`. Another kind of processor rounds differently, so a seed's\n"
        "score may differ there ([what the same bytes depend on](runs.md#the-same-bytes)).\n",
        "## Tuned presets\n",
        "`surefoot train CartPole-v1 --algo ppo` uses them automatically.\n",
        *tuned_table(results),
        *failures_list(),
        *fresh_seeds(results),
        "",
        "With an extra installed (`box2d`):\n",
        *rows_table(results, given=False),
        "",
        "The presets of MuJoCo's envs come from [the table of learning results](results.md), which has every seed and\n"
        "what they were chosen among. Where a later choice fell on another algorithm, the earlier preset is kept.",
        *atari_table(),
        "",
        "## Presets with given numbers\n",
        "These settings come from a homework sheet and from a lecture's programs; [lecture.md](lecture.md) explains\n"
        "the differences. We chose the number of steps.\n",
        *rows_table(results, given=True),
    ]
    return "\n".join(parts) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train presets, evaluate them, write the table of results.")
    parser.add_argument("--preset", nargs="+", metavar="NAME", default=None, help="only these (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="S")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--page-only", action="store_true", help="train nothing, rewrite the page")
    # How the script calls itself for one run:
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.measure:
        preset, seed = arguments.measure
        print(json.dumps(measure(preset, int(seed))))
        return 0
    results, failures = read_results(), []
    if not arguments.page_only:
        failures = measure_all(arguments.preset or list_presets(), arguments.seeds, arguments.jobs, results)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(results), encoding="utf-8")
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
