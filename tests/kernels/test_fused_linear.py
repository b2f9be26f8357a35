"""Triton's layers against PyTorch's and float64, in Triton's interpreter; a GPU repeats it in benchmarks/gpu.py."""

import os

import pytest
import torch

from surefoot.engine.torch.flat import FlatParameters
from tests.building import CONTINUOUS, make_policy, make_rollout
from tests.marks import quick

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
WIDTHS = [(1, 1), (4, 16), (33, 5), (64, 64)]


@pytest.fixture
def fused():
    from surefoot.kernels import fused_linear

    return fused_linear


def gradients(function, tensors, activation, dtype):
    x, weight, bias, into = (tensor.to(dtype) for tensor in tensors)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    result = function(*leaves, activation)
    return [result.detach(), *torch.autograd.grad(result, leaves, into)]


def some(rows, inputs, outputs):
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("rows", quick([1, 150], 150))
@pytest.mark.parametrize(("inputs", "outputs"), quick(WIDTHS, (33, 5)))
@pytest.mark.parametrize("activation", ["none", "tanh", "relu", "elu"])
def test_a_layer_and_its_gradients_are_those_of_float64(rows, inputs, outputs, activation, fused):
    tensors = some(rows, inputs, outputs)
    ours = gradients(fused.fused_linear, tensors, activation, torch.float32)
    exact = gradients(fused.plain_linear, tensors, activation, torch.float64)
    for one, other in zip(ours, exact, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-6


def test_a_row_does_not_depend_on_its_batch(fused):
    """To the bit on a GPU (benchmarks/gpu.py); the interpreter's products are NumPy's, which round by position."""
    x, weight, bias, _ = some(130, 4, 64)
    whole = fused.forward(x, weight, bias, "tanh")
    for own in (slice(77, 78), slice(3, 90)):
        torch.testing.assert_close(
            fused.forward(x[own].contiguous(), weight, bias, "tanh"), whole[own], rtol=0, atol=1e-6
        )


def test_no_rows_are_no_result(fused):
    x, weight, bias, _ = some(1, 4, 8)
    assert fused.forward(x[:0], weight, bias, "none").shape == (0, 8)


def test_unused_gradients_of_inputs_are_not_computed(fused):
    x, weight, bias, into = some(20, 4, 8)
    dx, dw, db = fused.backward(x, weight, fused.forward(x, weight, bias, "relu"), into, "relu", inputs=False)
    assert dx is None
    assert dw.shape == (8, 4)
    assert db.shape == (8,)


@pytest.mark.parametrize(
    "config", [{}, {"shared_trunk": True, "activation": "elu"}, {"memory": "gru", "memory_size": 8}]
)
@pytest.mark.parametrize(
    ("hidden", "precision"), [((16, 16), "float32"), ((80, 70), "float32"), ((80, 70), "tf32")]
)  # the second one by tiles (`fused_wide`), the third one with PyTorch's products, which a CPU does not round
def test_a_policy_of_fused_layers_says_the_same(hidden, precision, config, fused):
    from surefoot.engine.cuda.fused import fused_networks

    policy = make_policy(CONTINUOUS, hidden_sizes=hidden, **config)
    rollout = make_rollout(policy, steps=6, num_envs=5)
    rows, action = rollout.inputs[:-1].flatten(0, 1), rollout.action.flatten(0, 1)
    context = None if rollout.context is None else rollout.context.upto(6)
    found = []
    for compiled in (False, True):
        if compiled:
            policy.compute_with(fused_networks(policy, FlatParameters(policy).vector, precision))
        policy.zero_grad()
        outputs = policy.evaluate(rows, action, context)
        (outputs.log_prob.sum() + outputs.value.square().sum()).backward()
        found.append(
            [outputs.log_prob.detach(), outputs.value.detach(), *(p.grad.clone() for p in policy.parameters())]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_is_not_fused_says_why(fused, monkeypatch):
    from surefoot.engine.cuda import fused as module

    def why_not(precision="float32", **config):
        policy = make_policy(CONTINUOUS, **{"hidden_sizes": (16,), **config})
        return module.fused_networks(policy, FlatParameters(policy).vector, precision)

    assert "silu" in why_not(activation="silu")
    assert "depends on the state" in why_not(std="gsde")
    monkeypatch.setattr(module, "disagreement", lambda policy, precision: 0.1)
    assert "off by 0.1" in why_not()
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert "not installed" in why_not()
