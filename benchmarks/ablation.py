"""Does a setting help? PPO with each optional setting on and off, over seeds and envs.

    python benchmarks/ablation.py                                          # everything, seeds 0 to 4, two at a time
    python benchmarks/ablation.py --setting spo adam-rel --task cartpole hopper --seeds 0 1 2
    python benchmarks/ablation.py --scale 0.01 --seeds 0 --task cartpole   # a quick try

Every arm of a task has the same settings (the shipped preset, if there is one) except for the one in question. The
score is the mean return of 20 greedy episodes with the final weights. Runs with the same seed begin alike, so the
difference is taken seed by seed; its 95 % interval is that of `surefoot compare`. Each run's score is written to the
results as it arrives, and the next call computes only what is missing. `python benchmarks/report.py` then puts the
table into docs/improvements.md. What does not help is reported as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import machine
import numpy as np
from peers.hidden_wind import make as hidden_wind

from surefoot.analysis.intervals import Estimate, interval

EPISODES = 20
OUT = machine.RESULTS / "ablation.json"
Runs: TypeAlias = dict[str, dict[str, float]]  # {seed: {"final": …, "training": …}}
Results: TypeAlias = dict[str, dict[str, Runs]]  # {task: {setting or "off": …}}

SETTINGS: dict[str, dict[str, Any]] = {
    "spo": {"surrogate": "spo"},
    "adam-rel": {"optimizer": "adam-rel"},
    "mean-noise": {"mean_noise": 0.5},
    "outer": {"outer_learning_rate": 1.5},
    "critic-apart": {"value_epochs": 10},
    "value-lambda": {"value_lambda": 1.0},
    "layer-norm": {"layer_norm": True},
    "critic-obs": {"critic_obs": ["wind"]},
}
BOX_ONLY, PRIVILEGED_ONLY = ("mean-noise",), ("critic-obs",)
MUJOCO = {"preset": "none", "normalize_observations": True, "normalize_rewards": True, "rollout_length": 256}


@dataclass(frozen=True)
class Task:
    """`factory(shown)`: makes an env whose critic may see more; without `shown`, nobody does."""

    env: str
    steps: int
    box: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    factory: Any = None


TASKS = {
    "cartpole": Task("CartPole-v1", 50_000),
    "acrobot": Task("Acrobot-v1", 100_000),
    "pendulum": Task("Pendulum-v1", 200_000, box=True),
    "lunarlander": Task("LunarLander-v3", 500_000),
    "lunarlander-box": Task("LunarLanderContinuous-v3", 500_000, box=True),
    "bipedalwalker": Task("BipedalWalker-v3", 1_000_000, box=True),
    "hopper": Task("Hopper-v5", 500_000, box=True, settings=MUJOCO),
    "halfcheetah": Task("HalfCheetah-v5", 500_000, box=True, settings=MUJOCO),
    "walker2d": Task("Walker2d-v5", 500_000, box=True, settings=MUJOCO),
    "hidden-wind": Task("hidden-wind", 200_000, box=True, settings={"preset": "none"}, factory=hidden_wind),
}


def settings_for(task: Task) -> list[str]:
    """`off`, and the settings that make sense on a task."""
    left_out = (() if task.box else BOX_ONLY) + (() if task.factory else PRIVILEGED_ONLY)
    return ["off", *(name for name in SETTINGS if name not in left_out)]


def overrides(task: Task, setting: str, scale: float) -> dict[str, Any]:
    """The settings of one arm, `preset` not among them."""
    own = {"total_steps": max(20_000, int(task.steps * scale)), "threads": 1}
    given = {name: value for name, value in task.settings.items() if name != "preset"}
    return given | own | SETTINGS.get(setting, {})


def train(name: str, setting: str, seed: int, scale: float) -> dict[str, float]:
    """The score of one run, and the mean of its training returns over the run, which tells speed."""
    import surefoot

    task = TASKS[name]
    env: Any = partial(task.factory, setting in PRIVILEGED_ONLY) if task.factory else task.env
    more = overrides(task, setting, scale) | ({"preset": "none"} if task.settings.get("preset") == "none" else {})
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(
            env, "ppo", seed=seed, progress=False, eval_episodes=EPISODES, run_dir=Path(folder) / "run", **more
        )
        returns = [row["episode_return"] for row in run.metrics if row["episode_return"] is not None]
        final = float(run.result["eval"]["mean_return"])
    return {"final": round(final, 3), "training": round(float(np.mean(returns)), 3) if returns else final}


def difference(off: Runs, on: Runs) -> Estimate:
    """The mean of on − off over the seeds that both have."""
    seeds = sorted(set(off) & set(on), key=int)
    differences = np.array([on[seed]["final"] - off[seed]["final"] for seed in seeds])
    return interval([differences], lambda tasks: np.asarray(tasks[0].mean(-1)))


def verdict(found: Estimate) -> str:
    if np.isnan(found.low):
        return "one seed"
    return "helps" if found.low > 0.0 else "hurts" if found.high < 0.0 else "unclear"


def flags(setting: str) -> str:
    """As typed."""
    ((name, value),) = SETTINGS[setting].items()
    words = "" if value is True else f" {' '.join(value) if isinstance(value, list) else value}"
    return f"`--{name.replace('_', '-')}{words}`"


def table(results: Results) -> list[str]:
    """A row for each setting and task."""
    lines = machine.head("setting", "task", "seeds", "off", "on", "difference (95 %)", "verdict")
    for setting in SETTINGS:
        for name, arms in results.items():
            off, on = arms.get("off", {}), arms.get(setting, {})
            seeds = set(off) & set(on)
            if not seeds:
                continue
            found = difference(off, on)
            means = [f"{np.mean([arm[seed]['final'] for seed in seeds]):.1f}" for arm in (off, on)]
            ends = "" if np.isnan(found.low) else f" ({found.low:+.1f} to {found.high:+.1f})"
            cells = (len(seeds), *means, f"{found.value:+.1f}{ends}", verdict(found))
            lines.append(machine.row(flags(setting), name, *cells))
    return lines


def measure(results: Results, arguments: argparse.Namespace) -> Iterator[str]:
    """Measure what is missing; yields a line after each run."""
    wanted = [
        (name, setting, seed)
        for seed in arguments.seeds
        for name in arguments.task
        for setting in settings_for(TASKS[name])
        if setting in ("off", *arguments.setting)
    ]
    missing = [one for one in wanted if str(one[2]) not in results.get(one[0], {}).get(one[1], {})]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(train, *one, arguments.scale): one for one in missing}
        for future in as_completed(running):
            name, setting, seed = running[future]
            found = future.result()
            results.setdefault(name, {}).setdefault(setting, {})[str(seed)] = found
            yield f"{name:16} {setting:13} seed {seed} {found['final']:10.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="S")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time [2]")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the steps; needs --out if not 1 [1]")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.scale != 1.0 and out == OUT:
        parser.error("with --scale the scores are others; give --out as well")
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    stored = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"scale": arguments.scale, "results": {}}
    if stored["scale"] != arguments.scale:
        parser.error(f"{out} has scores of --scale {stored['scale']:g}; give another --out")
    results: Results = stored["results"]
    for line in measure(results, arguments):
        print(line, flush=True)
        half = out.with_suffix(".partial")
        half.parent.mkdir(parents=True, exist_ok=True)
        stored = {"machine": machine.describe(), "scale": arguments.scale, "results": results}
        half.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        half.replace(out)  # in one step: an interrupted study loses nothing
    out.with_suffix(".md").write_text("\n".join(table(results)) + "\n", encoding="utf-8")
    print("\n" + "\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
