"""Where the time of an update goes on a GPU: every kernel, and when the GPU had nothing to do.

    python benchmarks/gpu_profile.py "CartPole 2048 x 64, tf32" "robots 4096 x 24, float32"   # settings of gpu.py
    python benchmarks/gpu_profile.py --atari Pong --num-envs 128 --rollout-length 64 --precision tf32
    python benchmarks/gpu_profile.py --agents 256    # at once, with the setting of gpu_population.py

Prints, for each setting, the time of an update by the clock, how much of it the GPU was busy, its kernels by their
share and, where it was idle, after which kernel. `--out` keeps all that as JSON. The profiler itself makes everything a
little slower; `gpu.py` measures without it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gpu
import gpu_population
import machine
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import surefoot
from surefoot.engine.contract import Turn
from surefoot.engine.cuda.population.flight import Flight
from surefoot.engine.cuda.population.iteration import Population
from surefoot.limits import usable_cores
from surefoot.training.life.seeds import train_seeds
from surefoot.training.trainer import Trainer

ROWS = 14  # kernels that are printed
IDLE = 20.0  # microseconds: shorter gaps are those between any two kernels


class Profile(surefoot.Callback):
    """Profiles some updates in the middle of a run."""

    reads_tensors = False

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.profiler = profile(activities=[ProfilerActivity.CUDA])

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        if trainer.update == self.first:
            self.profiler.__enter__()
        if trainer.update == self.last:
            torch.cuda.synchronize()
            self.profiler.__exit__(None, None, None)
            trainer.stop("enough")

    def found(self) -> dict[str, Any]:
        return found_by(self.profiler, self.last - self.first)


def found_by(profiler: profile, updates: int) -> dict[str, Any]:
    """Per update, in microseconds."""
    events = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events() or []
        if event.device_type == DeviceType.CUDA
    ]
    return summary(sorted(events), updates)


def summary(events: list[tuple[float, float, str]], updates: int) -> dict[str, Any]:
    time, count, idle = defaultdict[str, float](float), defaultdict[str, int](int), defaultdict[str, float](float)
    busy, until, before = 0.0, events[0][0], ""
    for start, end, name in events:
        name = name.split("<")[0].split("(")[0].removeprefix("void ")[-60:]
        time[name] += end - start
        count[name] += 1
        if start - until > IDLE:
            idle[before] += start - until
        busy += max(0.0, end - max(start, until))
        if end > until:
            until, before = end, name
    whole = until - events[0][0]
    kernels = [
        {"name": name, "us": round(us / updates, 1), "count": round(count[name] / updates, 1)}
        for name, us in sorted(time.items(), key=lambda item: -item[1])
    ]
    gaps = [
        {"after": name, "us": round(us / updates, 1)} for name, us in sorted(idle.items(), key=lambda item: -item[1])
    ]
    return {"us": round(whole / updates, 1), "busy": round(busy / whole, 3), "kernels": kernels, "idle": gaps}


def profiled(env: Any, settings: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    ready, stop = env() if callable(env) else env, Profile(first, last)
    num_envs = ready.num_envs if callable(env) else settings["num_envs"]
    steps = num_envs * settings["rollout_length"]
    own = {"total_steps": 2 * last * steps, "log_every": 10 * steps, "callbacks": [stop]}
    own |= {} if callable(env) else {"device": "cuda"}
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(ready, run_dir=Path(folder) / "run", seed=0, **{**gpu.QUIET, **settings, **own})
        split = {name: round(share, 3) for name, share in run.result["time_split"].items()}
    return {**stop.found(), "time_split": split}


def profiled_agents(agents: int, precision: str, first: int = 4, last: int = 8) -> dict[str, Any]:
    """Iterations of a population, from one time that they are begun together to a later one."""
    own, profiler, pages = Population.begin, profile(activities=[ProfilerActivity.CUDA]), list[int]()

    def begin(self: Population, turns: Sequence[Turn]) -> Flight | None:
        if len(pages) in (first, last):
            torch.cuda.synchronize()
            profiler.__enter__() if len(pages) == first else profiler.__exit__(None, None, None)
        flight = own(self, turns)
        pages.append(0 if flight is None else len(flight.pages))
        return flight

    config = gpu_population.config_of("CartPole-v1", 60_000, {**gpu_population.ZOO, "precision": precision})
    with tempfile.TemporaryDirectory() as folder, patch.object(Population, "begin", begin):
        train_seeds(config, range(agents), run_dir=Path(folder) / "all", progress=False)
    return found_by(profiler, sum(pages[first:last]))


def show(name: str, found: dict[str, Any]) -> None:
    split = found.get("time_split", "")
    print(f"\n{name}: {found['us']:,.0f} us an update, GPU busy {100 * found['busy']:.1f} % {split}")
    for row in found["kernels"][:ROWS]:
        print(f"  {row['us']:10,.1f} us {row['count']:8,.1f} x {row['name']}")
    for row in found["idle"][:5]:
        print(f"  {row['us']:10,.1f} us idle after {row['after']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", nargs="*", choices=[*gpu.SPEEDS, []], metavar="SETTING")
    parser.add_argument("--atari", nargs="*", default=[], metavar="GAME")
    parser.add_argument("--num-envs", type=int, default=128, metavar="N", help="for Atari")
    parser.add_argument("--rollout-length", type=int, default=64, metavar="T", help="for Atari")
    parser.add_argument("--agents", type=int, metavar="N", help="as many agents at once")
    parser.add_argument("--precision", default="float32", help="for Atari and --agents")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "device": torch.cuda.get_device_name()}
    for name in given.setting:
        env, _, settings = gpu.SPEEDS[name]
        result[name] = profiled(env, settings, 20, 40)
        show(name, result[name])
    for game in given.atari:
        how = {"preset": "family/atari-ppo", "num_envs": given.num_envs, "rollout_length": given.rollout_length}
        how |= {"num_minibatches": 16, "precision": given.precision, "threads": usable_cores()}
        result[game] = profiled(f"atari:{game}-v5", how, 4, 12)
        show(f"{game}, {given.num_envs} envs x {given.rollout_length}, {given.precision}", result[game])
    if given.agents is not None:
        name = f"{given.agents} agents, {given.precision}"
        result[name] = profiled_agents(given.agents, given.precision)
        show(name, result[name])
    if given.out is not None:
        machine.keep(result, given.out)


if __name__ == "__main__":
    main()
