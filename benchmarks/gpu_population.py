"""A population on one GPU: 256 agents at once against the same agents one after the other.

    python benchmarks/gpu_population.py [--agents 256] [--alone 4] [--steps 100000] [--out FILE.json]
    python benchmarks/gpu_population.py --find    # kernel by kernel, tensor by tensor: where the bytes first differ

CartPole with the RL Zoo's settings (8 envs × 32 steps, 20 epochs of one minibatch, linear schedules), logs and
checkpoints included. Some of the agents are also trained alone, in the same process and after a run that compiles the
kernels: their weights and metrics must be the same bytes. `speedup`: steps per second of all agents together, after the
first third, over those of an agent alone. `speedup_with_start`: the same with everything from the start of the command
to its end. The goal is 50.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine

from surefoot.training.config.resolve import TrainConfig, resolve
from surefoot.training.life.launch import train_config
from surefoot.training.life.seeds import train_seeds

GOAL = 50.0
ZOO: dict[str, Any] = {
    "num_envs": 8, "rollout_length": 32, "num_epochs": 20, "num_minibatches": 1, "gae_lambda": 0.8, "gamma": 0.98,
    "learning_rate": 1e-3, "learning_rate_schedule": "linear", "clip_ratio_schedule": "linear",
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", ZOO),
    "CartPole, minibatches": ("CartPole-v1", {"num_envs": 16, "rollout_length": 32, "num_minibatches": 4}),
    "Pendulum, normalised, adaptive": (
        "Pendulum-v1",
        {
            "num_envs": 8,
            "rollout_length": 64,
            "normalize_observations": True,
            "normalize_rewards": True,
            "adaptive_kl": 0.01,
        },
    ),
    "Acrobot, bf16": ("Acrobot-v1", {"num_envs": 8, "rollout_length": 64, "precision": "bf16"}),
}


def config_of(env: str, steps: int, settings: dict[str, Any]) -> TrainConfig:
    how = {"total_steps": steps, "device": "cuda", "eval_episodes": 0, "log_every": max(steps // 20, 1), **settings}
    return resolve(env, "ppo", preset="none", overrides=how)


def content(run: Path) -> tuple[bytes, bytes]:
    """The last weights and all metrics."""
    last = max((p for p in run.glob("checkpoints/*") if p.name.isdigit()), key=lambda p: int(p.name))
    return (last / "policy.safetensors").read_bytes(), (run / "metrics.jsonl").read_bytes()


def rate(run: Path) -> float:
    """Steps per second of a run, after the first third of its rows."""
    rows = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    first, last = rows[len(rows) // 3], rows[-1]
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def compared(config: TrainConfig, agents: int, alone: int) -> dict[str, Any]:
    """All agents at once, and some of them alone."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        train_config(_with_seed(config, agents), run_dir=place / "first", progress=False)  # compiles the kernels
        begin = time.perf_counter()
        train_seeds(config, range(agents), run_dir=place / "all", progress=False)
        together = time.perf_counter() - begin
        singles, same = list[float](), list[bool]()
        begin = time.perf_counter()
        for seed in {round(k * (agents - 1) / max(alone - 1, 1)) for k in range(alone)}:
            train_config(_with_seed(config, seed), run_dir=place / f"alone{seed}", progress=False)
            singles.append(rate(place / f"alone{seed}"))
            same.append(content(place / f"alone{seed}") == content(place / "all" / f"s{seed}"))
        each, speed = (time.perf_counter() - begin) / len(singles), agents * rate(place / "all" / "s0")
        found = {"agents": agents, "steps_per_second": round(speed), "alone": round(sum(singles) / len(singles))}
        found["speedup"] = round(speed / (sum(singles) / len(singles)), 1)
        found["speedup_with_start"] = round(agents * each / together, 1)
        return {**found, "same_bytes": same, "ok": all(same)}


def _with_seed(config: TrainConfig, seed: int) -> TrainConfig:
    return replace(config, run=replace(config.run, seed=seed))


def check_case(name: str) -> tuple[str, Any]:
    """A few agents of one kind, for `gpu.py`."""
    env, settings = CASES[name]
    return name, compared(config_of(env, 30_000, settings), agents=5, alone=5)


def speeds(agents: int = 256, alone: int = 4, steps: int = 100_000) -> Iterator[tuple[str, Any]]:
    found = compared(config_of("CartPole-v1", steps, ZOO), agents, alone)
    yield f"{agents} agents on CartPole 8 x 32", {**found, "goal": found["speedup"] >= GOAL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--alone", type=int, default=4, help="agents that are trained alone as well")
    parser.add_argument("--steps", type=int, default=100_000, help="of each agent")
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "gpu_population.json", metavar="FILE.json")
    parser.add_argument("--find", action="store_true", help="say where bytes first differ, instead of measuring")
    given = parser.parse_args()
    if given.find:
        from gpu_population_find import find

        for line in (line for case in CASES for line in find(case)):
            print(line, flush=True)
        return
    rows = dict(speeds(given.agents, given.alone, given.steps))
    names = ("steps_per_second", "alone", "speedup", "speedup_with_start", "same_bytes")
    lines = [*machine.head("what", *names)]
    lines += [machine.row(name, *(str(row[key]) for key in names)) for name, row in rows.items()]
    machine.write({"machine": machine.describe(), **rows}, lines, given.out)


if __name__ == "__main__":
    main()
