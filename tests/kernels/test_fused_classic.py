"""Triton's step of classic control against PyTorch's, in Triton's interpreter."""

import os

import pytest
import torch

from surefoot.envs.config import EnvConfig
from surefoot.envs.device_envs import DeviceEnvs

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
CASES = [("CartPole-v1", {}), ("CartPole-v1", {"sutton_barto_reward": True}), ("Pendulum-v1", {"g": 9.81})]
CASES += [("Acrobot-v1", {}), ("MountainCar-v0", {"goal_velocity": 0.01}), ("MountainCarContinuous-v0", {})]


@pytest.mark.parametrize(("env", "kwargs"), CASES, ids=str)
def test_the_kernel_steps_as_pytorch_does(env, kwargs):
    config = EnvConfig(env=env, env_kwargs=kwargs, max_episode_steps=7)
    ours, theirs = (DeviceEnvs(config, 5, 3, torch.device("cpu")) for _ in range(2))
    ours.fused = True
    assert torch.equal(ours.reset(), theirs.reset())
    generator = torch.Generator().manual_seed(0)
    for _ in range(16):
        action = (
            torch.randn(5, 1, generator=generator)
            if ours.action_space.shape
            else torch.randint(2, (5,), generator=generator)
        )
        one, other = ours.step(action), theirs.step(action)
        for name in ("obs", "final_obs", "reward"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-6)
        for name in ("terminated", "truncated", "first"):
            assert torch.equal(getattr(one, name), getattr(other, name))
    for left, right in zip(ours.tensors, theirs.tensors, strict=True):
        torch.testing.assert_close(left, right)


def test_the_start_finds_out_whether_the_kernel_agrees(monkeypatch):
    from surefoot.kernels import fused_classic

    envs = DeviceEnvs(EnvConfig(env="CartPole-v1"), 5, 3, torch.device("cpu"))
    envs.reset()
    before = [tensor.clone() for tensor in envs.tensors]
    assert envs._agrees()
    monkeypatch.setattr(fused_classic, "step", lambda *_: 1 / 0)
    assert not envs._agrees()
    assert all(torch.equal(one, other) for one, other in zip(before, envs.tensors, strict=True))
