"""Compiled scan and explained variance against their oracles."""

import numpy as np
import pytest
import torch

from surefoot.algorithms.parts import AdvantageConfig, estimate
from surefoot.engine.native.operations import CompiledOperations
from surefoot.kernels import library, scan
from surefoot.math import returns, statistics
from surefoot.math.moments import moments, running_returns
from surefoot.math.operations import Operations
from tests.building import make_policy, make_rollout


@pytest.mark.skipif("fma" not in library.features(), reason="PyTorch rounds twice there")
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (128, 4), (33, 70)])
def test_the_scan_is_the_oracle_s_to_the_last_bit(shape):
    torch.manual_seed(0)
    x, decay = torch.randn(shape), torch.rand(shape)
    decay[torch.rand(shape) < 0.1] = 0.0
    assert torch.equal(scan.reverse_scan(x, decay), returns.reverse_scan(x, decay))


@pytest.mark.parametrize("weighted", [False, True])
def test_explained_variance(weighted):
    torch.manual_seed(0)
    target = torch.randn(50)
    value, weight = target + 0.5 * torch.randn(50), (torch.rand(50) > 0.4).float() if weighted else None
    expected = statistics.explained_variance(value, target, weight)
    assert scan.explained_variance(value, target, weight) == pytest.approx(float(expected), abs=1e-6)
    assert scan.explained_variance(value, torch.ones(50), weight) == 0.0
    assert scan.explained_variance(value, torch.full((50,), float("nan")), weight) != 0.0


@pytest.mark.parametrize(
    "config",
    [{}, {"value_lambda": 0.0}, {"value_lambda": 1.0, "gae_lambda": 0.5}, {"segment_length": 3}, {"gamma": 1.0}],
    ids=str,
)
def test_advantages_and_targets(config):
    rollout = make_rollout(make_policy(), steps=20, num_envs=7, done_probability=0.3)
    rollout.valid[torch.rand(20, 7) < 0.1] = False
    exact, found = (
        estimate(rollout, AdvantageConfig(**config), operations) for operations in (Operations(), CompiledOperations())
    )
    torch.testing.assert_close(found.advantage, exact.advantage, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.value_target, exact.value_target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3), (1000, 17), (4096, 1), (50, 4, 5)])
def test_moments_are_the_oracle_s(shape):
    rows = (np.random.default_rng(0).normal(size=shape) * 0.1 + 1000.0).astype(np.float32)
    for mine, expected in zip(scan.moments(rows), moments(rows), strict=True):
        assert mine.shape == shape[1:]
        np.testing.assert_allclose(mine, expected, rtol=1e-12, atol=1e-12)


def test_moments_by_hand():
    mean, var = scan.moments(np.array([[1.0, 2.0], [3.0, 2.0], [8.0, 2.0]], np.float32))
    assert mean.tolist() == [4.0, 2.0]
    assert var.tolist() == pytest.approx([26 / 3, 0.0], rel=1e-15)


def test_running_returns_by_hand():
    """γ = ½; env 0 ends at its second step, env 1 has a step that is none."""
    reward = np.array([[1.0, 4.0], [2.0, 9.0], [4.0, 8.0]])
    done = np.array([[False, False], [True, False], [False, False]])
    valid = np.array([[True, True], [True, False], [True, True]])
    for function in (running_returns, scan.running_returns):
        running = np.array([8.0, 0.0])
        seen, after = function(reward, done, valid, 0.5, running)
        assert seen.tolist() == [[5.0, 4.0], [4.5, 4.0], [4.0, 10.0]]
        assert after.tolist() == [4.0, 10.0]
        assert running.tolist() == [8.0, 0.0]


def test_running_returns_are_the_oracle_s():
    rng = np.random.default_rng(1)
    args = (rng.normal(size=(300, 5)), rng.random((300, 5)) < 0.1, rng.random((300, 5)) < 0.9, 0.99, rng.normal(size=5))
    for mine, expected in zip(scan.running_returns(*args), running_returns(*args), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12)
