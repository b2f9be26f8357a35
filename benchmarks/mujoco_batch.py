"""MuJoCo's envs in batches: how long a step takes, and how much of it is not physics.

    python benchmarks/mujoco_batch.py                         # writes benchmarks/results/mujoco_batch.json and .md
    python benchmarks/mujoco_batch.py --env Ant-v5 --num-envs 16 --threads 2 --rounds 3

For each env, in turn and for several rounds: Gymnasium's envs stepped one by one; our envs; of their time, what the
batch took for the physics alone ("bare"); and short training runs with PPO, with few envs and with many, at the same
number of steps per update. The table shows the ratios within each round. "overhead" is what our step takes beyond the
bare one. "training" is the share of the bare physics in the time of a training run, in the states that it plays in:
random actions, or physics without resets, would lead to others, with more contacts or fewer. "at most" is that share
if nothing but the bare physics and the gradient steps took time.
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
from machine import RESULTS, describe, head, ratio, row, spread, write

import surefoot
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.mujoco.batch import Simulations
from surefoot.envs.mujoco.serving import make_v5

NAMES = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher")
ENVS = tuple(f"{name}-v5" for name in (*NAMES, "InvertedPendulum", "InvertedDoublePendulum"))
ROLLOUT, MINIBATCH = 4096, 64  # steps
SETTINGS = {"num_epochs": 10, "normalize_observations": True, "normalize_rewards": True}


def seconds(step: Callable[[np.ndarray], object], actions: list[np.ndarray], least: float) -> float:
    """Seconds per call, over at least this time."""
    calls, start = 0, perf_counter()
    while (passed := perf_counter() - start) < least:
        for action in actions:
            step(action)
        calls += len(actions)
    return passed / calls


class Physics:
    """Measures what the batches of so many envs take while envs step."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.step, self.seconds, self.calls = num_envs, Simulations.step, 0.0, 0

    def __enter__(self) -> Physics:
        def timed(sims: Simulations, *arguments: Any) -> None:
            start = perf_counter()
            self.step(sims, *arguments)
            if sims.num == self.num_envs:
                self.seconds += perf_counter() - start
                self.calls += 1

        Simulations.step = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Simulations.step = self.step  # type: ignore[method-assign]

    @property
    def mean(self) -> float:
        return self.seconds / self.calls


def training(env: str, num_envs: int, threads: int, steps: int) -> dict[str, float]:
    """Seconds per step of all envs while PPO trains, from its first env step to its last update; and its phases'."""
    shape = {"num_envs": num_envs, "rollout_length": ROLLOUT // num_envs, "num_minibatches": ROLLOUT // MINIBATCH}
    with tempfile.TemporaryDirectory() as folder, Physics(num_envs) as physics:
        run = surefoot.train(
            env, "ppo", preset="none", seed=0, total_steps=steps, eval_episodes=0, progress=False, threads=threads,
            run_dir=Path(folder) / "run", **SETTINGS, **shape,
        )  # fmt: skip
        result = run.result
    whole = float(result["seconds"]) / (result["total_steps"] / num_envs)
    phases = {name: share * whole for name, share in result["time_split"].items()}
    return {"training": whole, "physics": physics.mean} | phases


def measure(env: str, num_envs: int, threads: int, least: float) -> dict[str, float]:
    """Seconds per step of all envs, without training."""
    config, rng = EnvConfig(env=env), np.random.default_rng(0)
    with (
        closing(GymEnvs(lambda: make_env(config), num_envs, 0)) as theirs,
        closing(make_v5(config, num_envs, 0)) as ours,
        Physics(num_envs) as physics,
    ):
        ours.use_threads(threads, measure=False)
        theirs.reset(), ours.reset()
        space = ours.facts.action_space
        actions = [rng.uniform(space.low, space.high, (num_envs, *space.shape)).astype(np.float32) for _ in range(50)]
        found = {"gymnasium": seconds(theirs.step, actions, least), "ours": seconds(ours.step, actions, least)}
        return found | {"bare": physics.mean}


def measure_all(env: str, args: argparse.Namespace) -> dict[str, Any]:
    """A round, in microseconds."""
    found: dict[str, Any] = {"steps": measure(env, args.num_envs[0], args.threads, args.seconds)}
    for num_envs in args.num_envs if args.steps else ():
        found[f"training, {num_envs} envs"] = training(env, num_envs, args.threads, args.steps)
    return {name: {key: 1e6 * value for key, value in part.items()} for name, part in found.items()}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    steps = [one["steps"] for one in rounds]
    found: dict[str, Any] = {
        "gymnasium/bare": spread([one["gymnasium"] / one["bare"] for one in steps]),
        "gymnasium/ours": spread([one["gymnasium"] / one["ours"] for one in steps]),
        "overhead_us": spread([one["ours"] - one["bare"] for one in steps]),
    }
    for name in [name for name in rounds[0] if name != "steps"]:
        each = [one[name] for one in rounds]
        found[name] = {
            "share": spread([one["physics"] / one["training"] for one in each]),
            "at_most": spread([one["physics"] / (one["physics"] + one["learn"]) for one in each]),
        }
    return found | {"rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", action="append", metavar="ID")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 64], metavar="N", help="of training [8 64]")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of a measurement")
    parser.add_argument("--steps", type=int, default=65_536, help="of a training run; 0: none", metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / "mujoco_batch.json", metavar="FILE.json")
    args = parser.parse_args()
    envs, machine = args.env or ENVS, describe()
    rounds: dict[str, list[dict[str, Any]]] = {env: [] for env in envs}
    for _ in range(args.rounds):
        for env in envs:
            rounds[env].append(measure_all(env, args))
    found = {env: summary(one) for env, one in rounds.items()}
    trainings = [name for name in found[envs[0]] if name.startswith("training")]
    first = f"{args.num_envs[0]} envs, {args.threads} threads"
    speeds = ["bare batch, × Gymnasium's speed", "ours, × Gymnasium's speed", "overhead per step, µs"]
    table = head(first, *speeds, *(cell for name in trainings for cell in (name, "at most")))
    for env, one in found.items():
        speeds = [ratio(one["gymnasium/bare"]), ratio(one["gymnasium/ours"]), ratio(one["overhead_us"], 0)]
        shares = [ratio(one[name][key]) for name in trainings for key in ("share", "at_most")]
        table.append(row(env, *speeds, *shares))
    settings = {"num_envs": args.num_envs, "threads": args.threads, "steps": args.steps}
    write({"machine": machine, "settings": settings, "envs": found}, table, args.out)


if __name__ == "__main__":
    main()
