"""Sums of rows in Triton's interpreter: right, and the same bits for a row alone and among others."""

import os

import pytest
import torch

from surefoot.engine.cuda.statistics import explained_variances, means, standardized
from surefoot.math.statistics import explained_variance, standardize

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
fused_sums = pytest.importorskip("surefoot.kernels.fused_sums")


@pytest.mark.parametrize("size", [1, 5, 1024, 1500, 20_000])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_rows_are_summed_alike_alone_and_among_others(size, kind):
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(size), dtype=kind)
    found = fused_sums.row_sums(x)
    assert torch.allclose(found.double(), x.double().sum(1), rtol=1e-5, atol=1e-3)
    assert all(torch.equal(found[k], fused_sums.row_sums(x[k])) for k in range(3))


def test_statistics_of_rows_are_those_of_their_twins():
    x, y = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(means(x), x.mean(1), atol=1e-6)
    for k in range(3):
        assert torch.allclose(standardized(x)[k], standardize(x[k]), atol=1e-5)
        assert torch.allclose(explained_variances(x, y)[k], explained_variance(x[k], y[k]), atol=1e-5)
        assert torch.equal(standardized(x)[k], standardized(x[k]))
        assert torch.equal(explained_variances(x, y)[k], explained_variances(x[k], y[k]))
    still = torch.ones(2, 4)
    assert explained_variances(still, still).tolist() == [0.0, 0.0]
    assert torch.equal(standardized(x[:, :1]), x[:, :1])
