"""Whatever computes a policy's memory and MLPs: PyTorch's modules are the oracle, and one object is exchanged."""

import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from surefoot.engine.cuda.networks import FusedNetworks, RecordedNetworks
from surefoot.engine.native.networks import CompiledNetworks
from surefoot.engine.torch.flat import FlatParameters
from surefoot.policies.mlp import ACTIVATIONS
from surefoot.policies.networks import PlainNetworks
from tests.building import CONTINUOUS, make_policy, make_rollout

KINDS = {
    "compiled": lambda policy: CompiledNetworks(policy, FlatParameters(policy), 1),
    "recorded": RecordedNetworks,
    "fused": FusedNetworks,
    "whole": lambda policy: FusedNetworks(policy, WholeInPyTorch(policy)),
}
POLICIES = {
    "plain": {},
    "trunk": {"shared_trunk": True},
    "no critic": {"critic": False},
    "gru": {"memory": "gru", "memory_size": 6},
    "lstm on a trunk": {"memory": "lstm", "memory_size": 6, "shared_trunk": True},
}


class WholeInPyTorch:
    """Stands in for `WholeNets`, whose kernels need Triton."""

    def __init__(self, policy):
        self.plain, self.asked = PlainNetworks(policy), 0

    def outputs(self, features):
        self.asked += 1
        return self.plain.outputs(features)

    def value(self, features):
        return None if self.plain.critic is None else self.plain.value(features)


@pytest.fixture(autouse=True)
def _layers_in_pytorch(monkeypatch):
    """Stands in for Triton's layers, which have tests of their own (`tests/kernels/test_fused_linear.py`)."""

    def layer(x, weight, bias, activation, precision):
        linear = torch.nn.functional.linear(x, weight, bias)
        return linear if activation == "none" else ACTIVATIONS[activation](linear)

    monkeypatch.setitem(sys.modules, "surefoot.kernels.fused_linear", SimpleNamespace(fused_linear=layer))


def everything(policy, rollout):
    """What a policy says about a rollout, with gradients and without, and after one step."""
    inputs, context = rollout.inputs[:-1].flatten(0, 1), rollout.context
    context = None if context is None else context.upto(len(rollout.reward))
    noise, memory = policy.noise(1, 4, torch.Generator().manual_seed(0))[0], policy.initial_memory(4)
    start = None if memory is None else torch.tensor([True, False, False, True])
    policy.zero_grad()
    outputs = policy.evaluate(inputs, rollout.action.flatten(0, 1), context)
    (outputs.log_prob.sum() + outputs.value.square().sum()).backward()
    with torch.no_grad():
        again = policy.evaluate(inputs, rollout.action.flatten(0, 1), context)
        acted = policy.act(rollout.inputs[0], noise, None if memory is None else memory + 0.5, start)
        found = [again.log_prob, again.value, policy.value(inputs, context), policy.action_params(inputs, context)]
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    return [outputs.log_prob.detach(), outputs.value.detach(), *found, *(x for x in acted if x is not None), *gradients]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", POLICIES)
def test_networks_compute_what_pytorchs_modules_do(kind, config):
    policy = make_policy(CONTINUOUS, hidden_sizes=(8, 8), **POLICIES[config])
    rollout = make_rollout(policy)
    expected = everything(policy, rollout)
    policy.compute_with(KINDS[kind](policy))
    found = everything(policy, rollout)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_whole_nets_serve_where_no_gradient_is_needed():
    policy = make_policy(CONTINUOUS)
    whole = WholeInPyTorch(policy)
    policy.compute_with(FusedNetworks(policy, whole))
    policy.evaluate(torch.zeros(3, 4), torch.zeros(3, 2))
    assert not whole.asked
    with torch.no_grad():
        policy.evaluate(torch.zeros(3, 4), torch.zeros(3, 2))
    assert whole.asked == 1


@pytest.mark.parametrize("kind", KINDS)
def test_uncompiled_is_a_swap_that_always_ends(kind):
    policy = make_policy(CONTINUOUS)
    networks = KINDS[kind](policy)
    policy.compute_with(networks)
    with policy.uncompiled():
        assert policy.networks is networks.reference
        assert isinstance(policy.networks, PlainNetworks)
        assert not isinstance(policy.networks, FusedNetworks)
    assert policy.networks is networks
    with pytest.raises(TypeError), policy.uncompiled():
        policy.value(None)
    assert policy.networks is networks


def test_a_copy_of_a_policy_computes_with_its_own_weights():
    policy = make_policy(CONTINUOUS)
    twin, x = deepcopy(policy), torch.ones(1, 4)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin.value(x).any()
    assert policy.value(x).any()


def test_networks_are_no_part_of_a_checkpoint():
    policy = make_policy(CONTINUOUS, memory="gru", memory_size=6)
    names = set(policy.state_dict())
    policy.compute_with(RecordedNetworks(policy))
    assert set(policy.state_dict()) == names
    assert not any("networks" in name for name in names)
