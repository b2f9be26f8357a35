"""Layers in tiles against PyTorch's and float64, in Triton's interpreter; a GPU repeats it in benchmarks/gpu.py."""

import os

import pytest
import torch

from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
SHAPES = [(1, (3, 5)), (40, (130, 33, 7)), (300, (48, 150, 129, 12)), (600, (6, 17, 1))]
EXACT, ALMOST, ROUGH = (3, 1e-6), (2, 2e-4), (1, 2e-2)  # parts of a number, and how close results are


@pytest.fixture
def wide():
    from surefoot.kernels import fused_wide

    return fused_wide


def some(rows, widths):
    """(x, weights and biases, gradient of the results)."""
    generator = torch.Generator().manual_seed(rows)

    def draw(*size):
        return torch.randn(size, generator=generator)

    sizes = list(zip(widths[1:], widths[:-1], strict=True))
    return draw(rows, widths[0]), [(draw(n, k) / k**0.5, draw(n)) for n, k in sizes], draw(rows, widths[-1])


def plain_mlp(x, layers, activations):
    from surefoot.kernels.fused_linear import plain_linear

    for (weight, bias), activation in zip(layers, activations, strict=True):
        x = plain_linear(x, weight, bias, activation)
    return x


def gradients(function, x, layers, into, activations, dtype, **how):
    x, into = x.to(dtype).requires_grad_(), into.to(dtype)
    layers = [tuple(tensor.to(dtype).requires_grad_() for tensor in layer) for layer in layers]
    result = function(x, layers, activations, **how)
    leaves = [x, *(tensor for layer in layers for tensor in layer)]
    return [result.detach(), *torch.autograd.grad(result, leaves, into)]


@pytest.mark.parametrize(("rows", "widths"), quick(SHAPES, SHAPES[1]))
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("activate_last", [False, True])
def test_layers_and_their_gradients_are_those_of_float64(rows, widths, activation, activate_last, wide):
    compare(rows, widths, activation, activate_last, *EXACT, wide)


@pytest.mark.parametrize("activation", ["tanh", "elu"])  # with relu, a unit that is nearly off may be on
@pytest.mark.parametrize(("parts", "close"), [ALMOST, ROUGH])
def test_fewer_parts_are_less_exact(activation, parts, close, wide):
    compare(*SHAPES[1], activation, False, parts, close, wide)


def compare(rows, widths, activation, activate_last, parts, close, wide):
    x, layers, into = some(rows, widths)
    activations = [activation] * (len(layers) - 1) + [activation if activate_last else "none"]
    ours = gradients(wide.wide_mlp, x, layers, into, activations, torch.float32, parts=parts)
    exact = gradients(plain_mlp, x, layers, into, activations, torch.float64)
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).norm() <= close * (other.norm() + rows**0.5)  # sums over rows may cancel


def test_the_gradient_of_weights_is_the_sum_over_all_shares_of_the_rows(wide, monkeypatch):
    monkeypatch.setattr(wide, "LEAST_ROWS", 32)
    dz, x = torch.randn(500, 20), torch.randn(500, 9)
    weights, bias = wide.to_weights(dz, x)
    torch.testing.assert_close(weights, dz.T @ x, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(bias, dz.sum(0), rtol=1e-5, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch(wide):
    """To the bit on a GPU (benchmarks/gpu.py); the interpreter's products are NumPy's, which round by position."""
    x, ((weight, bias),), _ = some(300, (150, 70))
    whole = wide.forward(x, weight, bias, "tanh")
    for own in (slice(77, 78), slice(3, 190)):
        found = wide.forward(x[own].contiguous(), weight, bias, "tanh")
        torch.testing.assert_close(found, whole[own], rtol=0, atol=1e-6)


def test_no_rows_are_no_result_and_no_gradient(wide):
    x, layers, _ = some(1, (4, 100, 8))
    found = gradients(wide.wide_mlp, x[:0], layers, torch.zeros(0, 8), ["relu", "none"], torch.float32)
    assert found[0].shape == (0, 8)
    assert all(not tensor.any() for tensor in found[2:])


def test_unused_gradients_of_inputs_are_not_computed(wide, monkeypatch):
    x, layers, into = some(20, (4, 100, 8))
    asked = []
    monkeypatch.setattr(wide, "to_inputs", lambda *given: (asked.append(given), torch.zeros(20, 100))[1])
    leaves = [tensor.requires_grad_() for layer in layers for tensor in layer]
    wide.wide_mlp(x, layers, ["relu", "none"]).backward(into)
    assert len(asked) == 1  # of the second layer, for the first one
    assert all(leaf.grad is not None for leaf in leaves)
