"""A stub simulator the size of a robot, and what each library makes of it. Imports only the library that is asked for.

    PYTHON benchmarks/peers/robots.py rsl '{"num_envs": 4096, "updates": 20, "tf32": true, "device": "cuda"}'

Prints the seconds of an update as JSON: a rollout of 24 steps, then 5 epochs of 4 minibatches, with 512-256-128 ELU
nets and normalised observations. Called by `gpu_robots.py`, with the Python of each library.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, EPOCHS, MINIBATCHES, HIDDEN, RATE = 24, 5, 4, (512, 256, 128), 1e-3
OBSERVATIONS, ACTIONS, LIMIT = 48, 12, 500
WARM = 5  # updates before the clock starts


class Simulator:
    """Linear dynamics; episodes are cut after 500 steps, at different times. Everything stays on the device."""

    def __init__(self, num_envs: int, device: str) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        generator = torch.Generator(device).manual_seed(0)
        self._drift = 0.1 * torch.randn(ACTIONS, OBSERVATIONS, generator=generator, device=device)
        self.reset()

    def reset(self) -> Tensor:
        self.state = torch.zeros(self.num_envs, OBSERVATIONS, device=self.device)
        self.time = torch.arange(self.num_envs, device=self.device) % LIMIT
        return self.state

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(observation, reward, truncated, the observation before a reset)."""
        final = 0.95 * self.state + action @ self._drift
        self.time = self.time + 1
        truncated = self.time >= LIMIT
        self.state, self.time = final * ~truncated[:, None], self.time * ~truncated
        return self.state, -final.square().mean(1), truncated, final


def timed(updates: int, work: Callable[[int], Any], device: str) -> float:
    """Seconds of an update. `work`: does so many more."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    work(WARM)
    wait()
    start = time.perf_counter()
    work(updates)
    wait()
    return (time.perf_counter() - start) / updates


def rsl(num_envs: int, updates: int, device: str) -> float:
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Envs(VecEnv):
        def __init__(self) -> None:
            self.simulator, self.num_envs, self.num_actions = Simulator(num_envs, device), num_envs, ACTIONS
            self.max_episode_length, self.device, self.cfg = LIMIT, device, {}
            self.episode_length_buf = self.simulator.time

        def get_observations(self) -> Any:
            return TensorDict({"policy": self.simulator.state}, batch_size=[num_envs])

        def step(self, actions: Tensor) -> Any:
            _, reward, truncated, _ = self.simulator.step(actions)
            return self.get_observations(), reward, truncated, {"time_outs": truncated}

    network = {"class_name": "MLPModel", "hidden_dims": list(HIDDEN), "activation": "elu", "obs_normalization": True}
    config = {
        "num_steps_per_env": LENGTH,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": EPOCHS, "num_mini_batches": MINIBATCHES, "learning_rate": RATE,
            "schedule": "fixed",
        },
    }  # fmt: skip
    runner = OnPolicyRunner(Envs(), config, log_dir=None, device=device)
    return timed(updates, lambda number: runner.learn(number), device)


def skrl(num_envs: int, updates: int, device: str) -> float:
    import gymnasium as gym
    import numpy as np
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.trainers.torch import SequentialTrainer

    seen, taken = (gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for size in (OBSERVATIONS, ACTIONS))

    class Envs(Wrapper):
        def __init__(self) -> None:
            super().__init__(type("Inner", (), {"unwrapped": None, "device": device, "num_envs": num_envs})())
            self.simulator = Simulator(num_envs, device)

        num_envs, num_agents = property(lambda _: num_envs), property(lambda _: 1)  # type: ignore[assignment]
        device, state_space = property(lambda _: torch.device(device)), property(lambda _: None)  # type: ignore[assignment]
        observation_space, action_space = property(lambda _: seen), property(lambda _: taken)  # type: ignore[assignment]

        def reset(self) -> Any:
            return self.simulator.state, {}

        def step(self, actions: Tensor) -> Any:
            obs, reward, truncated, _ = self.simulator.step(actions)
            return obs, reward[:, None], torch.zeros_like(truncated)[:, None], truncated[:, None], {}

        def state(self) -> None:
            return None

        def render(self) -> None:
            return None

        def close(self) -> None:
            return None

    def network(outputs: int) -> nn.Sequential:
        sizes = (OBSERVATIONS, *HIDDEN)
        hidden = [part for k, n in zip(sizes[:-1], HIDDEN, strict=True) for part in (nn.Linear(k, n), nn.ELU())]
        return nn.Sequential(*hidden, nn.Linear(HIDDEN[-1], outputs))

    spaces = {"observation_space": seen, "action_space": taken, "device": device}

    class Policy(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net, self.log_std = network(ACTIONS), nn.Parameter(torch.zeros(ACTIONS))

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = network(1)

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {}

    experiment = {"directory": tempfile.gettempdir(), "write_interval": 0, "checkpoint_interval": 0}
    cfg = {
        "rollouts": LENGTH, "learning_epochs": EPOCHS, "mini_batches": MINIBATCHES, "learning_rate": RATE,
        "observation_preprocessor": RunningStandardScaler,
        "observation_preprocessor_kwargs": {"size": seen, "device": device}, "experiment": experiment,
    }  # fmt: skip
    env = Envs()
    agent = PPO(
        models={"policy": Policy().to(device), "value": Value().to(device)},
        memory=RandomMemory(memory_size=LENGTH, num_envs=num_envs, device=device),
        observation_space=seen, action_space=taken, device=device, cfg=cfg,
    )  # fmt: skip

    def work(number: int) -> None:
        how = {"timesteps": number * LENGTH, "headless": True, "disable_progressbar": True}
        SequentialTrainer(env=env, agents=agent, cfg={**how, "close_environment_at_exit": False}).train()

    return timed(updates, work, device)


if __name__ == "__main__":
    name, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.pop("tf32"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    print(json.dumps({"seconds": {"rsl": rsl, "skrl": skrl}[name](**options)}))
