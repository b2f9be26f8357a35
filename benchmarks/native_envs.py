"""The native classic-control envs against Gymnasium's: a thousand whole episodes of each, bit by bit, and their speed.

    python benchmarks/native_envs.py                          # writes benchmarks/results/native_envs.json
    python benchmarks/native_envs.py --episodes 100 --env Acrobot-v1 --flags=-march=x86-64-v3

Every step of both is compared: observations, rewards, ends, final observations and the inner float64 states.
Actions are random, extreme (far out of bounds, zeros of both signs, the smallest number) or chosen to pump energy into
the system. Speed is measured with one call for all envs: the best of several rounds in which both alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import NativeEnvs, exploring_actions, states_differ
from surefoot.envs.side_by_side import same_bits, steps_differ
from tests.native import classic_library

RESULTS = Path(__file__).parent / "results" / "native_envs.json"
ENVS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
NUM_ENVS, ROUNDS, CALLS = 8, 9, 300


def compare(theirs: GymEnvs, ours: NativeEnvs, episodes: int) -> dict[str, Any]:
    """Play until this many episodes have ended; returns the first difference, if any."""
    rng = np.random.default_rng(0)
    obs = theirs.reset()
    difference = None if same_bits(obs, ours.reset()) else "first observations"
    steps = ended = terminated = 0
    while difference is None and ended < episodes:
        action = exploring_actions(ours.kind, obs, rng)
        step, twin = theirs.step(action), ours.step(action)
        difference = steps_differ(step, twin) or states_differ(theirs, ours)
        obs = step.obs
        steps += theirs.num_envs
        ended += len(step.final_obs)
        terminated += int(step.terminated.sum())
    return {"episodes": ended, "terminated": terminated, "steps": steps, "difference": difference}


def measure(theirs: GymEnvs, ours: NativeEnvs) -> dict[str, float]:
    """Microseconds per env step: Gymnasium's, ours through Python, and our C++ alone (in a batch of 1024)."""
    rng = np.random.default_rng(1)
    actions = [exploring_actions(ours.kind, ours.observations, rng) for _ in range(CALLS)]
    best = {"gymnasium": np.inf, "native": np.inf}
    for _ in range(ROUNDS):
        for name, envs in (("gymnasium", theirs), ("native", ours)):
            start = perf_counter()
            for action in actions:
                envs.step(action)
            best[name] = min(best[name], (perf_counter() - start) / CALLS / NUM_ENVS)
    large = NativeEnvs(EnvConfig(env=ours.name), 1024, 0, ours.envs.library)
    large.reset()
    large.envs.action[...] = np.resize(np.concatenate(actions), large.envs.action.shape)
    best["inside"] = np.inf
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(CALLS):  # including resets
            large.envs.step()
        best["inside"] = min(best["inside"], (perf_counter() - start) / CALLS / large.num_envs)
    return {f"{name}_us": round(1e6 * seconds, 3) for name, seconds in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=ENVS, choices=ENVS)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--flags", nargs="*", default=(), help="of the compiler, besides the usual ones")
    arguments = parser.parse_args()
    library = classic_library(*arguments.flags)
    found = {}
    for name in arguments.env:
        config = EnvConfig(env=name)
        with (
            closing(GymEnvs(lambda config=config: make_env(config), NUM_ENVS, 0)) as theirs,
            closing(NativeEnvs(config, NUM_ENVS, 0, library)) as ours,
        ):
            found[name] = compare(theirs, ours, arguments.episodes) | measure(theirs, ours)
        print(name, json.dumps(found[name]), flush=True)
    result = {"gymnasium": gym.__version__, "numpy": np.__version__, "flags": list(arguments.flags), "envs": found}
    if tuple(arguments.env) == ENVS and not arguments.flags:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    if any(row["difference"] for row in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
