"""Mean, quantile, largest and explained variance against PyTorch's, in Triton's interpreter."""

import os

import numpy as np
import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
SHAPES = [(1,), (2,), (3, 500), (2, 5000)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "close to zero", "equal", "two values"])
def test_a_quantile_is_pytorchs(shape, kind):
    from surefoot.kernels.fused_summary import spread

    x = torch.randn(shape, generator=torch.Generator().manual_seed(shape[-1]))
    kinds = {"normal": x, "close to zero": x**2 * 1e-6, "equal": x * 0 - 2.5, "two values": (x > 1).float()}
    x = kinds[kind]
    for quantile in (0.95, 0.0, 1.0):
        mean, between, largest = spread(x, quantile)
        assert torch.allclose(mean, x.mean(-1), rtol=1e-5, atol=1e-6)
        assert torch.allclose(between, torch.quantile(x, quantile, -1), rtol=1e-4, atol=1e-7)
        assert torch.equal(largest, x.amax(-1))


@pytest.mark.parametrize("shape", [*SHAPES[2:], (150_000,)])
def test_the_explained_variance_is_that_of_the_readable_twin(shape):
    from surefoot.kernels.fused_summary import explained_variance
    from surefoot.math.statistics import explained_variance as twin

    generator = torch.Generator().manual_seed(1)
    target = 1000.0 + torch.randn(shape, generator=generator)
    value = target + 0.5 * torch.randn(shape, generator=generator)
    rows = zip(value.view(-1, shape[-1]), target.view(-1, shape[-1]), strict=True)
    expected = torch.stack([twin(*row) for row in rows]).view(shape[:-1])
    assert torch.allclose(explained_variance(value, target), expected, atol=1e-4)
    assert torch.equal(explained_variance(value, torch.full(shape, 3.0)), torch.zeros(shape[:-1]))


def test_of_very_many_numbers_a_quantile_is_taken_of_some(monkeypatch):
    from surefoot.kernels import fused_summary

    monkeypatch.setattr(fused_summary, "SEEN", 100)
    x = torch.randn(2, 999, generator=torch.Generator().manual_seed(3))
    mean, between, largest = fused_summary.spread(x, 0.9)
    assert torch.allclose(between, torch.quantile(x[:, ::11], 0.9, -1))  # not every tenth: envs come in even numbers
    assert torch.equal(largest, x.amax(-1))
    assert torch.allclose(mean, x.mean(-1), atol=1e-6)


def test_a_row_does_not_depend_on_those_beside_it():
    from surefoot.kernels.fused_summary import explained_variance, spread

    x, y = torch.randn(2, 4, 3000, generator=torch.Generator().manual_seed(2))
    for row in range(4):
        assert all(torch.equal(a[row], b) for a, b in zip(spread(x, 0.9), spread(x[row], 0.9), strict=True))
        assert torch.equal(explained_variance(x, y)[row], explained_variance(x[row], y[row]))


def test_nan_is_not_hidden():
    from surefoot.kernels.fused_summary import spread

    with np.errstate(invalid="ignore"):
        assert spread(torch.tensor([1.0, float("nan"), 2.0]), 0.5)[0].isnan()
