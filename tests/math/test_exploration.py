import math

import pytest
import torch

from surefoot.math.exploration import LEAST_STD, sde_log_std, sde_noise

FEATURES = torch.tensor([[1.0, 2.0], [0.5, -1.0], [0.0, 0.0]])
LOG_STD = torch.tensor([[0.5, 1.0], [0.25, 0.1]]).log()


def test_the_variance_by_hand():
    """1²·0.5² + 2²·0.25² = 0.5 and 1²·1² + 2²·0.1² = 1.04; 0.5²·0.5² + 1²·0.25² = 0.125 and 0.26."""
    expected = torch.tensor([[0.5, 1.04], [0.125, 0.26], [0.0, 0.0]]) + LEAST_STD**2
    torch.testing.assert_close(sde_log_std(FEATURES, LOG_STD), 0.5 * expected.log())


def test_the_noise_by_hand():
    """E = [[2, -1], [4, 3], [0, 0]] and φ = (1, 2): 1·0.5·2 + 2·0.25·4 = 3 and −1·1·1 + 2·0.1·3 = −0.4."""
    matrix = torch.tensor([[[2.0, -1.0], [4.0, 3.0], [0.0, 0.0]]])
    expected = torch.tensor([[3.0 / math.sqrt(0.5 + 1e-6), -0.4 / math.sqrt(1.04 + 1e-6)]])
    torch.testing.assert_close(sde_noise(FEATURES[:1], LOG_STD, matrix), expected)


def test_without_features_the_last_row_is_the_noise():
    matrix = torch.randn(1, 3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sde_noise(FEATURES[2:], LOG_STD, matrix), matrix[:, -1])


def test_over_matrices_it_is_standard_normal_and_alike_where_the_features_are():
    """Cov(z(s), z(s')) = Σ_j φ_j φ'_j σ_j² / √(v v') in each dimension, 0 between the dimensions."""
    count, generator = 200_000, torch.Generator().manual_seed(0)
    matrix = torch.randn(count, 3, 2, generator=generator)
    first, second = (sde_noise(FEATURES[i].expand(count, 2), LOG_STD, matrix) for i in (0, 1))
    joint = torch.cat([first, second], -1)  # z₁(s), z₂(s), z₁(s'), z₂(s')
    shared = [(0.5 * 0.25 - 2.0 * 0.0625) / math.sqrt(0.5 * 0.125), (0.5 * 1.0 - 2.0 * 0.01) / math.sqrt(1.04 * 0.26)]
    expected = torch.eye(4)
    for d, value in enumerate(shared):
        expected[d, d + 2] = expected[d + 2, d] = value
    torch.testing.assert_close(torch.cov(joint.T), expected, rtol=0, atol=0.01)
    torch.testing.assert_close(joint.mean(0), torch.zeros(4), rtol=0, atol=0.01)
    assert (joint**4).mean(0) == pytest.approx([3.0] * 4, abs=0.1)  # of a normal


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(AssertionError, match="features"):
        sde_log_std(torch.zeros(3, 1), LOG_STD)
    with pytest.raises(AssertionError, match="matrix"):
        sde_noise(FEATURES, LOG_STD, torch.zeros(3, 2, 2))
