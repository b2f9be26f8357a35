"""What worker processes gain: rollouts with envs of different cost, in one process and in K.

    python benchmarks/workers.py [--rounds 5] [--seconds 2] [--num-envs 8] [--workers K]

The envs are synthetic ones whose steps keep a core busy for some milliseconds (not asleep), one whose resets are slow
too, and LunarLander-v3 if it is installed. A policy of two 64-64 networks acts on the compiled kernels. Three ways
alternate within each round, because the machine's speed drifts; ratios are taken round by round:

- one process;
- K workers in step: all envs step before the policy acts again (as with PyTorch, whose sums would otherwise round
  differently);
- K workers apart: each acts on its own and exchanges nothing before the rollout is over. The bytes are the same as with
  the other two.

Whole rollouts are timed. K is the number of usable cores, at most the number of envs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import torch

from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.contract import CollectorOptions, LearnerOptions
from surefoot.engine.native.engine import NativeEngine
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.workers import WorkerEnvs
from surefoot.limits import usable_cores
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig

SEED = 0
LENGTH = 64  # of a rollout
WAYS = ("one process", "in step", "apart")


class Busy(gym.Env[Any, Any]):
    """Eight numbers, 50 steps per episode, with `milliseconds` of work in each step and `reset` in a reset."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, milliseconds: float = 0.0, reset: float = 0.0) -> None:
        self._step, self._reset, self._obs, self._time = milliseconds / 1000, reset / 1000, np.zeros(8, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._work(self._reset)
        # Episodes of different envs end at different times.
        self._time = int(self.np_random.integers(50))
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._work(self._step)
        self._time += 1
        return self._obs, 1.0, self._time >= 50, False, {}

    @staticmethod
    def _work(seconds: float) -> None:
        until = perf_counter() + seconds
        while perf_counter() < until:
            pass


def cases() -> Iterator[tuple[str, EnvConfig]]:
    def busy(**kwargs: float) -> EnvConfig:
        return EnvConfig(env=f"{Path(__file__).resolve()}:Busy", env_kwargs=kwargs)

    yield "a step takes no time", busy()
    yield "0.03 ms a step", busy(milliseconds=0.03)
    yield "0.05 ms a step", busy(milliseconds=0.05)
    yield "0.1 ms a step", busy(milliseconds=0.1)
    yield "0.1 ms a step, 5 ms a reset", busy(milliseconds=0.1, reset=5.0)
    yield "1 ms a step", busy(milliseconds=1.0)
    if find_spec("Box2D"):
        yield "LunarLander-v3", EnvConfig(env="LunarLander-v3")


def collector(envs: Any, *, in_step: bool = False) -> Collector:
    torch.manual_seed(SEED)
    policy, engine = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig()), NativeEngine()
    learner = engine.learner(policy, PPOClip(Config()), LearnerOptions(torch.Generator(), threads=1))
    made = engine.collector(envs, learner.actor, CollectorOptions(LENGTH, torch.Generator().manual_seed(SEED)))
    if in_step:
        made.stepping = step_all
    made.collect()
    return made


def rate(made: Collector, seconds: float) -> float:
    """Env steps per second."""
    start, steps = perf_counter(), 0
    while (passed := perf_counter() - start) < seconds:
        made.collect()
        steps += LENGTH * made.envs.num_envs
    return steps / passed


def measure(config: EnvConfig, num_envs: int, workers: int, seconds: float, rounds: int) -> list[dict[str, float]]:
    with (
        closing(GymEnvs(lambda: make_env(config), num_envs, SEED)) as here,
        closing(WorkerEnvs(config, num_envs, SEED, workers)) as there,
        closing(WorkerEnvs(config, num_envs, SEED, workers)) as apart,
    ):
        ways = dict(zip(WAYS, (collector(here), collector(there, in_step=True), collector(apart)), strict=True))
        found = []
        for number in range(rounds):
            names = WAYS if number % 2 == 0 else WAYS[::-1]  # neither is always first
            found.append({name: rate(ways[name], seconds) for name in names})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement [2]")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--workers", type=int, help="[as many as usable cores, or envs]")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "workers.json", metavar="FILE.json")
    arguments = parser.parse_args()
    workers = arguments.workers or min(usable_cores(), arguments.num_envs)
    setting = f"{arguments.num_envs} envs, {workers} workers, rollouts of {LENGTH} steps"
    result: dict[str, Any] = {"machine": machine.describe(), "setting": setting, "envs": {}}
    titles = ("one process, steps/s", f"{workers} workers in step", "apart", "apart / one process", "apart / in step")
    table = machine.head(f"{arguments.num_envs} envs", *titles)
    for name, config in cases():
        rounds = measure(config, arguments.num_envs, workers, arguments.seconds, arguments.rounds)
        speeds = {way: machine.spread([found[way] for found in rounds]) for way in WAYS}
        ratios = {way: machine.spread([found["apart"] / found[way] for found in rounds]) for way in WAYS[:2]}
        result["envs"][name] = {"steps_per_second": speeds, "apart_over": ratios, "rounds": rounds}
        cells = [f"{speeds[way]['median']:,.0f}" for way in WAYS]
        table.append(machine.row(name, *cells, *(machine.ratio(ratios[way]) for way in WAYS[:2])))
        print(table[-1], flush=True)
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
