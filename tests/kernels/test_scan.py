"""Compiled scan and explained variance against their oracles."""

import pytest
import torch

from surefoot.algorithms.parts import AdvantageConfig, advantages
from surefoot.kernels import library, scan
from surefoot.math import returns, statistics
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
    exact = advantages(rollout, AdvantageConfig(**config))
    rollout.compiled = scan
    found = advantages(rollout, AdvantageConfig(**config))
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
