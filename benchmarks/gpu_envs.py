"""What `gpu.py` trains on: a stub simulator on the device, small pictures, an encoder that waits for the device."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from peers.robots import ACTIONS, OBSERVATIONS, Simulator
from torch import Tensor, nn


class Robots(gym.vector.VectorEnv[Any, Any, Any]):
    """The stub simulator of `peers/robots.py` as a vector env of tensors."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, num_envs: int, device: str = "cuda") -> None:
        self.num_envs, self.simulator = num_envs, Simulator(num_envs, device)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        return self.simulator.reset(), {}

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        obs, reward, truncated, final = self.simulator.step(action)
        return obs, reward, torch.zeros_like(truncated), truncated, {"final_obs": final}


class Frames(gym.Env[Any, Any]):
    """Small pictures: a bright column is to be named."""

    observation_space = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    action_space = spaces.Discrete(3)

    def _show(self) -> Any:
        self._wanted = int(self.np_random.integers(3))
        frame = self.np_random.integers(0, 100, (3, 36, 36)).astype(np.uint8)
        frame[:, :, 12 * self._wanted : 12 * self._wanted + 12] += 100
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        reward = float(action == self._wanted)
        return self._show(), reward, False, self._time >= 20, {}


class Waits(nn.Module):
    """An encoder that reads a number on the host."""

    def __init__(self, layout: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.size = 8

    def forward(self, parts: dict[str, Tensor]) -> Tensor:
        obs = parts[""]
        if not float(obs.abs().max()) < 1e6:
            raise ValueError("an observation is not plausible")
        return torch.tanh(self.layer(obs.float()))
