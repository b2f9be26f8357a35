"""Vector envs of tensors: PPO steps per second on CartPole in PyTorch, and a check that no step waits for the device.

    python benchmarks/tensor_envs.py [--device cuda] [--num-envs 4096 65536] [--updates 24]

From the first env step of every rollout to its last, PyTorch raises an error if the host waits for the GPU
(`torch.cuda.set_sync_debug_mode`); on the CPU there is nothing to wait for. Speeds cover collecting and learning, after
a quarter of the updates. The result goes to benchmarks/results/tensor_envs.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import warnings
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import Tensor

import surefoot

RESULTS = Path(__file__).parent / "results" / "tensor_envs.json"
LENGTH = 500  # steps after which an episode is cut


class Poles(gym.vector.VectorEnv[Any, Any, Any]):
    """CartPole-v1's equations for N carts at once, entirely on the device."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, num_envs: int, device: str, rollout_length: int) -> None:
        self.num_envs, self.device = num_envs, device
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self._generator = torch.Generator(device)
        self._rollout_length, self._steps, self.guarded = rollout_length, 0, 0

    def _fresh(self) -> Tensor:
        return torch.rand(self.num_envs, 4, generator=self._generator, device=self.device) * 0.1 - 0.05

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state, self._time = self._fresh(), torch.zeros(self.num_envs, device=self.device)
        return self._state, {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        self._guard()
        _, velocity, angle, spin = self._state.unbind(1)
        cos, sin = angle.cos(), angle.sin()
        push = (20.0 * action - 10.0 + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        final = self._state + 0.02 * torch.stack([velocity, pull, spin, turn], 1)
        self._time = self._time + 1
        terminated = (final[:, 0].abs() > 2.4) | (final[:, 2].abs() > 12 * 2 * np.pi / 360)
        truncated = (self._time >= LENGTH) & ~terminated
        done = terminated | truncated
        self._state = torch.where(done[:, None], self._fresh(), final)
        self._time = self._time * ~done
        return self._state, torch.ones_like(self._time), terminated, truncated, {"final_obs": final}

    def _guard(self) -> None:
        """Active from a rollout's first step to its last."""
        if self.device != "cuda":
            return
        self._steps += 1
        if self._steps == 1:
            torch.cuda.set_sync_debug_mode("error")
        if self._steps == self._rollout_length:
            torch.cuda.set_sync_debug_mode("default")
            self._steps, self.guarded = 0, self.guarded + 1


class Clock(surefoot.Callback):
    """Records when each update was done, including work on the device."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        self.marks.append((perf_counter(), trainer.step))

    @property
    def rate(self) -> float:
        (began, first), (ended, last) = self.marks[len(self.marks) // 4], self.marks[-1]
        return (last - first) / (ended - began)


def measure(num_envs: int, length: int, updates: int, device: str) -> dict[str, Any]:
    envs, clock = Poles(num_envs, device, length), Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = surefoot.train(
            envs,
            "ppo",
            preset="none",
            seed=0,
            rollout_length=length,
            num_epochs=4,
            num_minibatches=4,
            total_steps=updates * length * num_envs,
            log_every=length * num_envs,
            eval_episodes=0,
            progress=False,
            callbacks=[clock],
            run_dir=Path(folder) / "run",
        )
        returns = [row["episode_return"] for row in run.metrics if row["episode_return"] is not None]
        return {
            "num_envs": num_envs,
            "rollout_length": length,
            "updates": updates,
            "steps_per_second": round(clock.rate),
            "rollouts_without_a_wait": envs.guarded if device == "cuda" else None,
            "time_split": {name: round(share, 2) for name, share in run.result["time_split"].items()},
            "first_return": round(returns[0], 1),
            "last_return": round(returns[-1], 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--rollout-length", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--updates", type=int, default=24)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
    found = []
    for num_envs in arguments.num_envs:
        for length in arguments.rollout_length:
            found.append(measure(num_envs, length, arguments.updates, arguments.device))
            print(json.dumps(found[-1]), flush=True)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.machine()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"device": where, "torch": torch.__version__, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
