"""Gymnasium's MuJoCo-v5 envs against ours, stepped in batches: a thousand whole episodes of each, bit by bit.

    python benchmarks/mujoco_equal.py                         # writes benchmarks/results/mujoco_equal.json
    python benchmarks/mujoco_equal.py --episodes 100 --env Ant-v5

Every step of both is compared: observations, rewards, ends, final observations and infos, positions, velocities and
warm starts. Each of ten envs has its own strength of random actions, from none to beyond the bounds, and plays the same
number of episodes, so long ones count as much as short ones. The results are saved after every 50 episodes, and a
script that was stopped continues from there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
from machine import describe

from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.mujoco.serving import make_v5, states_differ, v5_task
from surefoot.envs.side_by_side import same_bits, steps_differ

RESULTS = Path(__file__).parent / "results" / "mujoco_equal.json"
NUM_ENVS, PART = 10, 50


def compare(env: str, part: int, episodes: int) -> dict[str, Any]:
    """Play this many episodes, rounded up to the same number in each env. `part`: the run's seed."""
    config, rng = EnvConfig(env=env), np.random.default_rng(part)
    with (
        closing(GymEnvs(lambda: make_env(config), NUM_ENVS, part)) as theirs,
        closing(make_v5(config, NUM_ENVS, part)) as ours,
    ):
        difference = None if same_bits(theirs.reset(), ours.reset()) else "first observations"
        low, high = ours.facts.action_space.low, ours.facts.action_space.high
        strength = np.linspace(0.0, 1.3, NUM_ENVS)[:, None]
        left, steps, terminated = np.full(NUM_ENVS, -(-episodes // NUM_ENVS)), 0, 0
        wanted = int(left.sum())
        while difference is None and (playing := left > 0).any():
            action = (strength * rng.uniform(low, high, (NUM_ENVS, *low.shape))).astype(np.float32)
            active = None if playing.all() else playing
            step, twin = theirs.step(action, active), ours.step(action, active)
            difference = steps_differ(step, twin) or states_differ(theirs, ours)
            left -= step.terminated | step.truncated
            steps += int(playing.sum())
            terminated += int(step.terminated.sum())
    return {"episodes": wanted - int(left.sum()), "terminated": terminated, "steps": steps, "difference": difference}


def add(found: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The sum of two results; the first difference stays."""
    counts = {name: found[name] + more[name] for name in ("episodes", "terminated", "steps")}
    return {**counts, "parts": found["parts"] + 1, "difference": found["difference"] or more["difference"]}


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("mujoco", "gymnasium", "numpy")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000, metavar="N")
    parser.add_argument("--env", action="append", metavar="ID", help="default: all of MuJoCo-v5")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE.json")
    args = parser.parse_args()
    envs = args.env or sorted(name for name in gym.registry if v5_task(name) is not None)
    result = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    if result.get("versions") != versions():  # results of other versions prove nothing
        result = {"versions": versions(), "machine": describe(), "envs": {}}
    for env in envs:
        none = {"episodes": 0, "terminated": 0, "steps": 0, "parts": 0, "difference": None}
        found = result["envs"].get(env, none)
        while found["episodes"] < args.episodes and found["difference"] is None:
            found = add(found, compare(env, found["parts"], min(PART, args.episodes - found["episodes"])))
            result["envs"][env] = found
            args.out.parent.mkdir(parents=True, exist_ok=True)
            beside = args.out.with_suffix(".tmp")
            beside.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
            beside.replace(args.out)
        print(f"{env}: {found['difference'] or 'equal'} in {found['episodes']:,} episodes, {found['steps']:,} steps")
    if any(found["difference"] for found in result["envs"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
