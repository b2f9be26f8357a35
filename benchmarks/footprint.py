"""The memory that runs use, compared with the estimate made before they start.

    python benchmarks/footprint.py          # results/footprint.json

Each case is a separate process. "Taken" is the peak that the system reports, minus what the process held after the
imports and one tiny run. If the estimate is too high, a run that would just fit is refused; if it is much too low, a
run starts that will run out of memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from machine import RESULTS, describe

from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer

MIB = 2**20
SIZES = ("num_envs", "rollout_length", "max_episode_steps", "hidden_sizes")
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "many envs, kernels": ("CartPole-v1", "ppo", {"num_envs": 4096, "rollout_length": 128}),
    "long rollouts, one minibatch": (
        "CartPole-v1",
        "ppo",
        {"num_envs": 512, "rollout_length": 1024, "num_minibatches": 1},
    ),
    "wide networks, threads measured": (
        "Pendulum-v1",
        "ppo",
        {"hidden_sizes": "2048,2048", "num_envs": 8, "threads": "auto"},
    ),
    "wide networks, one thread": ("Pendulum-v1", "ppo", {"hidden_sizes": "2048,2048", "num_envs": 8}),
    "wide networks, PyTorch": (
        "Pendulum-v1",
        "ppo",
        {"hidden_sizes": "2048,2048", "num_envs": 64, "num_minibatches": 1, "engine": "torch"},
    ),
    "TRPO": ("Pendulum-v1", "trpo", {"num_envs": 1024, "rollout_length": 256}),
    "TRPO, PyTorch": ("Pendulum-v1", "trpo", {"num_envs": 256, "rollout_length": 256, "engine": "torch"}),
    "normalised observations": (
        "Acrobot-v1",
        "ppo",
        {"num_envs": 2048, "rollout_length": 128, "normalize_observations": True},
    ),
    "gSDE, PyTorch with parts": ("Pendulum-v1", "ppo", {"std": "gsde", "num_envs": 256, "rollout_length": 256}),
    "GRU": ("CartPole-v1", "ppo", {"memory": "gru", "num_envs": 512, "rollout_length": 256}),
    "whole episodes": ("CartPole-v1", "reinforce", {"num_envs": 2048, "max_episode_steps": 200}),
}


def run_one(name: str) -> dict[str, float]:
    """In a separate process: MiB taken and estimated."""
    import resource

    env, algo, settings = CASES[name]
    small = {key: value for key, value in settings.items() if key not in SIZES}
    train(env, algo, small, num_envs=4, length=8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parts = train(env, algo, settings, settings.get("num_envs", 8), settings.get("rollout_length", 200)).footprint
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sizes = {"taken": most - before, "foretold": parts.total, **vars(parts)}
    return {name: round(size / MIB, 1) for name, size in sizes.items()}


def train(env: str, algo: str, settings: dict[str, Any], num_envs: int, length: int) -> Trainer:
    """Two updates."""
    own: dict[str, Any] = {"threads": 1, "num_envs": num_envs, "total_steps": 2 * num_envs * length}
    if algo == "reinforce":
        own["max_episode_steps"] = length
    else:
        own["rollout_length"] = length
    if algo == "ppo":
        own["num_epochs"] = 2
    trainer = Trainer(resolve(env, algo, preset="none", overrides=own | settings), 0)
    trainer.train()
    trainer.envs.close()
    return trainer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), help="measure this one in this process")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_one(arguments.case)))
        return 0
    result: dict[str, Any] = {"machine": describe(), "unit": "MiB", "cases": {}}
    for name in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", name], stdout=subprocess.PIPE, text=True, check=True)
        case = json.loads(done.stdout.splitlines()[-1])
        result["cases"][name] = case
        print(f"{name:34} taken {case['taken']:8.1f}  foretold {case['foretold']:8.1f} MiB", flush=True)
    (RESULTS / "footprint.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
