"""Compiled GRU and LSTM against PyTorch's own in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surefoot.kernels.recurrent import recurrence


def run(net, lstm, x, state, start):
    """PyTorch's own, step by step."""
    out = []
    for t in range(len(x)):
        state = state * ~start[t][:, None]
        parts = tuple(part[None].contiguous() for part in state.chunk(2 if lstm else 1, -1))
        step, after = net(x[t : t + 1], parts if lstm else parts[0])
        state = torch.cat([part[0] for part in (after if lstm else (after,))], -1)
        out.append(step)
    return torch.cat(out), state


@pytest.mark.parametrize("lstm", [False, True], ids=["gru", "lstm"])
@pytest.mark.parametrize(
    ("steps", "sequences", "hidden"), [(1, 1, 64), (37, 2, 64), (5, 37, 20), (30, 16, 1), (9, 3, 50), (6, 79, 20)]
)
def test_outputs_states_and_gradients(lstm, steps, sequences, hidden):
    torch.manual_seed(0)
    kind = nn.LSTM if lstm else nn.GRU
    net, oracle = kind(3, hidden), kind(3, hidden).double()
    oracle.load_state_dict(net.state_dict())
    x = torch.randn(steps, sequences, 3, requires_grad=True)
    state = (0.5 * torch.randn(sequences, (2 if lstm else 1) * hidden)).requires_grad_()
    start = torch.rand(steps, sequences) < 0.1
    out_weight, after_weight = torch.randn(steps, sequences, hidden), torch.randn_like(state)

    inputs = F.linear(x, net.weight_ih_l0, net.bias_ih_l0)
    out, after = recurrence(lstm, inputs, state, net.weight_hh_l0, net.bias_hh_l0, start)
    loss = (out * out_weight).sum() + (after * after_weight).sum()
    found = (out, after, *torch.autograd.grad(loss, [x, state, *net.parameters()]))

    exact_x, exact_state = (t.detach().double().requires_grad_() for t in (x, state))
    exact_out, exact_after = run(oracle, lstm, exact_x, exact_state, start)
    loss = (exact_out * out_weight).sum() + (exact_after * after_weight).sum()
    exact = (exact_out, exact_after, *torch.autograd.grad(loss, [exact_x, exact_state, *oracle.parameters()]))
    for ours, theirs in zip(found, exact, strict=True):
        assert (ours.double() - theirs).norm() < 2e-6 * theirs.norm()


def test_a_sequence_does_not_depend_on_its_neighbours():
    net = nn.GRU(3, 8)
    x, state = torch.randn(4, 20, 3), torch.randn(20, 8)
    with torch.no_grad():
        inputs = F.linear(x, net.weight_ih_l0, net.bias_ih_l0)
        start = torch.rand(4, 20) < 0.2
        out, _ = recurrence(False, inputs, state, net.weight_hh_l0, net.bias_hh_l0, start)
        for at in (3, 17):  # among sixteen, and by itself
            own = slice(at, at + 1)
            alone, _ = recurrence(False, inputs[:, own], state[own], net.weight_hh_l0, net.bias_hh_l0, start[:, own])
            assert torch.equal(out[:, own], alone)
