"""MuJoCo's envs in batches: how long a step takes, and how much of it is not physics.

    python benchmarks/mujoco_batch.py                         # writes benchmarks/results/mujoco_batch.json and .md
    python benchmarks/mujoco_batch.py --env Ant-v5 --num-envs 16 --threads 2 --rounds 3

For each env, in turn and for several rounds: Gymnasium's envs stepped one by one; our envs; of their time, what the
batch took for the physics alone ("bare"); and a short training run with PPO. The table shows the ratios within each
round. "overhead" is what our step takes beyond the bare one. (Physics without observations and resets would play in
other states, with more contacts.) "at most" is the share that training would have if nothing but the bare physics and
the gradient steps took time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import RESULTS, describe, ratio, spread, write

import surefoot
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.mujoco.envs import MujocoEnvs
from surefoot.envs.mujoco.serving import make_v5

NAMES = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher")
ENVS = tuple(f"{name}-v5" for name in (*NAMES, "InvertedPendulum", "InvertedDoublePendulum"))
LENGTH = 512
SETTINGS = {"rollout_length": LENGTH, "num_epochs": 10, "normalize_observations": True, "normalize_rewards": True}


def seconds(step: Callable[[np.ndarray], object], actions: list[np.ndarray], least: float) -> float:
    """Seconds per call, over at least this time."""
    calls, start = 0, perf_counter()
    while (passed := perf_counter() - start) < least:
        for action in actions:
            step(action)
        calls += len(actions)
    return passed / calls


class Physics:
    """Measures what the batch takes while our envs step."""

    def __init__(self, envs: MujocoEnvs) -> None:
        self.step, self.seconds, self.calls = envs.sims.step, 0.0, 0
        envs.sims.step = self  # type: ignore[method-assign,assignment]

    def __call__(self, *arguments: int) -> None:
        start = perf_counter()
        self.step(*arguments)
        self.seconds += perf_counter() - start
        self.calls += 1


def training(env: str, num_envs: int, threads: int, steps: int) -> dict[str, float]:
    """Seconds per step of all envs while PPO trains, from its first env step to its last update; and its phases'."""
    minibatches = {"num_envs": num_envs, "num_minibatches": num_envs * LENGTH // 64, "threads": threads}
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(
            env, "ppo", preset="none", seed=0, total_steps=steps, eval_episodes=0, progress=False,
            run_dir=Path(folder) / "run", **SETTINGS, **minibatches,
        )  # fmt: skip
        whole = float(run.result["seconds"]) / (run.result["total_steps"] / num_envs)
        return {"training": whole} | {name: share * whole for name, share in run.result["time_split"].items()}


def measure(env: str, num_envs: int, threads: int, least: float, steps: int) -> dict[str, float]:
    """Microseconds per step of all envs."""
    config, rng = EnvConfig(env=env), np.random.default_rng(0)
    with (
        closing(GymEnvs(lambda: make_env(config), num_envs, 0)) as theirs,
        closing(make_v5(config, num_envs, 0)) as ours,
    ):
        ours.use_threads(threads, measure=False)
        theirs.reset(), ours.reset()
        space, physics = ours.facts.action_space, Physics(ours)
        actions = [rng.uniform(space.low, space.high, (num_envs, *space.shape)).astype(np.float32) for _ in range(50)]
        found = {
            "gymnasium": seconds(theirs.step, actions, least),
            "ours": seconds(ours.step, actions, least),
        }
        found["bare"] = physics.seconds / physics.calls
    if steps:
        found |= training(env, num_envs, threads, steps)
    return {name: 1e6 * value for name, value in found.items()}


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gymnasium/bare": spread([one["gymnasium"] / one["bare"] for one in rounds]),
        "gymnasium/ours": spread([one["gymnasium"] / one["ours"] for one in rounds]),
        "overhead_us": spread([one["ours"] - one["bare"] for one in rounds]),
    }
    if "training" in rounds[0]:
        found["bare/training"] = spread([one["bare"] / one["training"] for one in rounds])
        found["at_most"] = spread([one["bare"] / (one["bare"] + one["learn"]) for one in rounds])
    return found | {"rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", metavar="ID")
    parser.add_argument("--num-envs", type=int, default=8, metavar="N")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of a measurement")
    parser.add_argument("--steps", type=int, default=65_536, help="of a training run; 0: none", metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "mujoco_batch.json", metavar="FILE.json")
    args = parser.parse_args()
    envs, machine = args.env or ENVS, describe()
    rounds: dict[str, list[dict[str, float]]] = {env: [] for env in envs}
    for _ in range(args.rounds):
        for env in envs:
            rounds[env].append(measure(env, args.num_envs, args.threads, args.seconds, args.steps))
    found = {env: summary(one) for env, one in rounds.items()}
    table = [
        f"| {args.num_envs} envs, {args.threads} threads | bare batch, × Gymnasium's speed | ours, × Gymnasium's speed "
        "| overhead per step, µs | training, of the bare batch's speed | at most |",
        "|---|---|---|---|---|---|",
    ]
    for env, one in found.items():
        trained = " | ".join(ratio(one[name]) if name in one else "–" for name in ("bare/training", "at_most"))
        speeds = f"{ratio(one['gymnasium/bare'])} | {ratio(one['gymnasium/ours'])}"
        table.append(f"| {env} | {speeds} | {ratio(one['overhead_us'], 0)} | {trained} |")
    settings = {"num_envs": args.num_envs, "threads": args.threads, "steps": args.steps}
    write({"machine": machine, "settings": settings, "envs": found}, table, args.out)


if __name__ == "__main__":
    main()
