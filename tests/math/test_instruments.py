"""The instruments' own arithmetic, by hand."""

import pytest
import torch

from surefoot.math.instruments import gradient_noise, half_noise, layer_activity


def test_gradient_noise_by_hand():
    """Gradients (3, 0) and (1, 2) of 5 samples each: mean (2, 1), variance (1 + 1 + 1 + 1) / 1 = 4.

    tr Σ = 5·4, ‖G‖² = 5 − 4/2.
    """
    noise, signal = gradient_noise((9.0 + 5.0) / 2, 5.0, 2, 5.0)
    assert (noise, signal) == (pytest.approx(20.0), pytest.approx(3.0))


def test_half_of_a_batch_says_what_two_halves_say():
    first, second = torch.tensor([3.0, 0.0]), torch.tensor([1.0, 2.0])
    found = half_noise((first + second) / 2, first, 10.0)
    assert [float(x) for x in found] == [pytest.approx(20.0), pytest.approx(3.0)]


def test_gradient_noise_is_unbiased():
    """Per-sample gradients N(G, I) in four dimensions with G = (1, 1, 0, 0): tr Σ = 4, ‖G‖² = 2."""
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, 8, 16, 4, generator=draw) + torch.tensor([1.0, 1.0, 0.0, 0.0])
    gradients = samples.mean(2)  # of 16 samples each, 8 of them in an update
    squares, means = (gradients**2).sum(-1).mean(1), (gradients.mean(1) ** 2).sum(-1)
    noise, signal = gradient_noise(squares, means, 8, 16.0)
    assert float(noise.mean()) == pytest.approx(4.0, rel=0.02)
    assert float(signal.mean()) == pytest.approx(2.0, rel=0.02)


def test_a_layer_by_hand():
    """Two units that vary by ±1 and ±2 independently, one that copies the first, one that is stuck.

    Covariance [[1, 0, 1], [0, 4, 0], [1, 0, 1]] and zeros: trace 6, squares 1 + 1 + 1 + 1 + 16 = 20.
    """
    hidden = torch.tensor(
        [[1.0, 2.0, 1.0, 0.7], [1.0, -2.0, 1.0, 0.7], [-1.0, 2.0, -1.0, 0.7], [-1.0, -2.0, -1.0, 0.7]]
    )
    dead, rank = layer_activity(hidden)
    assert float(dead) == 0.25
    assert float(rank) == pytest.approx(36.0 / 20.0)
    assert float(layer_activity(hidden[:, :2])[1]) == pytest.approx(25.0 / 17.0)  # more samples than units


def test_samples_without_weight_do_not_count():
    hidden = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    expected = layer_activity(hidden)
    more = torch.cat([hidden, 100.0 * torch.ones(2, 3)])
    found = layer_activity(more, torch.tensor([1.0] * 6 + [0.0] * 2))
    assert [float(x) for x in found] == [pytest.approx(float(x), rel=1e-5) for x in expected]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_layer_that_says_nothing_has_rank_zero(value):
    assert [float(x) for x in layer_activity(torch.full((5, 3), value))] == [1.0, 0.0]
