"""Layers with PyTorch's products and our slopes against float64, in Triton's interpreter."""

import pytest
import torch

from tests.kernels.test_fused_wide import SHAPES, gradients, plain_mlp, some

slopes = pytest.importorskip("surefoot.kernels.fused_slopes")


@pytest.mark.parametrize(("rows", "widths"), SHAPES)
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("activate_last", [False, True])
def test_layers_and_their_gradients_are_those_of_float64(rows, widths, activation, activate_last):
    x, layers, into = some(rows, widths)
    activations = [activation] * (len(layers) - 1) + [activation if activate_last else "none"]
    ours = gradients(slopes.rounded_mlp, x, layers, into, activations, torch.float32)
    exact = gradients(plain_mlp, x, layers, into, activations, torch.float64)
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).norm() <= 1e-6 * (other.norm() + rows**0.5)


@pytest.mark.parametrize("programs", [1, 4, 1056])
@pytest.mark.parametrize("activation", ["none", "tanh", "relu", "elu"])
def test_any_number_of_programs_adds_up_every_row_once(programs, activation, monkeypatch):
    monkeypatch.setattr(slopes, "PROGRAMS", programs)
    dh, h = torch.randn(203, 150), torch.randn(203, 150)
    dz, db = slopes.slopes(dh, h, activation)
    slope = {
        "none": torch.ones_like(h),
        "tanh": 1 - h * h,
        "relu": (h > 0).float(),
        "elu": torch.where(h > 0, 1, h + 1),
    }
    torch.testing.assert_close(dz, dh * slope[activation], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(db, dz.sum(0), rtol=1e-4, atol=1e-4)


def test_no_rows_are_no_result_and_no_gradient():
    x, layers, _ = some(1, (4, 100, 8))
    found = gradients(slopes.rounded_mlp, x[:0], layers, torch.zeros(0, 8), ["relu", "none"], torch.float32)
    assert found[0].shape == (0, 8)
    assert all(not tensor.any() for tensor in found[2:])


def test_inputs_that_need_no_gradient_get_none():
    x, layers, into = some(20, (4, 100, 8))
    leaves = [tensor.requires_grad_() for layer in layers for tensor in layer]
    slopes.rounded_mlp(x, layers, ["relu", "none"]).backward(into)
    assert all(leaf.grad is not None for leaf in leaves)
