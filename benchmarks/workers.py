"""What worker processes gain: env steps per second in one process and in K, for envs of different cost.

    python benchmarks/workers.py [--rounds 5] [--seconds 2] [--num-envs 8] [--workers K]

The envs are ones whose step keeps a core busy for so many milliseconds (no sleep: that would cost no core), and
LunarLander-v3 where it is installed. Both ways are measured with random actions, in turn within each round, because the
machine's speed drifts; the ratio is taken round by round. Only the time inside `envs.step` counts. K: the usable cores,
or as many as there are envs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np

from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.random_play import Player
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers.auto import usable_cores

RESULTS = Path(__file__).parent / "results" / "workers.json"
MILLISECONDS = (0.0, 0.1, 1.0, 5.0)
SEED = 0


class Busy(gym.Env[Any, Any]):
    """Eight numbers, 200 steps an episode, and `milliseconds` of work in each."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, milliseconds: float = 0.0) -> None:
        self._seconds, self._obs, self._time = milliseconds / 1000, np.zeros(8, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = perf_counter() + self._seconds
        self._time += 1
        while perf_counter() < until:
            pass
        return self._obs, 1.0, self._time == 200, False, {}


def cases() -> Iterator[tuple[str, EnvConfig]]:
    for milliseconds in MILLISECONDS:
        kwargs = {"milliseconds": milliseconds}
        yield f"{milliseconds:g} ms", EnvConfig(env=f"{Path(__file__).resolve()}:Busy", env_kwargs=kwargs)
    if find_spec("Box2D"):
        yield "LunarLander-v3", EnvConfig(env="LunarLander-v3")


def measure(config: EnvConfig, num_envs: int, workers: int, seconds: float, rounds: int) -> list[dict[str, float]]:
    here = GymEnvs(lambda: make_env(config), num_envs, SEED)
    with closing(here), closing(WorkerEnvs(config, num_envs, SEED, workers)) as there:
        players = {"in_process": Player(here, SEED), "workers": Player(there, SEED)}
        found = []
        for number in range(rounds):
            names = sorted(players, reverse=bool(number % 2))  # neither is always the first
            speeds = {name: players[name].rate(seconds) for name in names}
            found.append(speeds | {"ratio": speeds["workers"] / speeds["in_process"]})
    return found


def summarize(rounds: list[dict[str, float]]) -> dict[str, Any]:
    ratios = [found["ratio"] for found in rounds]
    return {
        "in_process": statistics.median(found["in_process"] for found in rounds),
        "workers": statistics.median(found["workers"] for found in rounds),
        "median_ratio": statistics.median(ratios),
        "lowest_ratio": min(ratios),
        "highest_ratio": max(ratios),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement [2]")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--workers", type=int, help="[as many as usable cores, or envs]")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FILE.json")
    arguments = parser.parse_args()
    workers = arguments.workers or min(usable_cores(), arguments.num_envs)
    result: dict[str, Any] = {
        "setting": f"{arguments.num_envs} envs, {workers} workers, random actions, time inside envs.step",
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "envs": {},
    }
    for name, config in cases():
        found = summarize(measure(config, arguments.num_envs, workers, arguments.seconds, arguments.rounds))
        result["envs"][name] = found
        print(
            f"{name:<15} in one process {found['in_process']:>9,.0f} steps/s, {workers} workers "
            f"{found['workers']:>9,.0f}, ratio {found['median_ratio']:.2f} "
            f"({found['lowest_ratio']:.2f} to {found['highest_ratio']:.2f})",
            flush=True,
        )
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
