"""All parameters in one vector, and their gradients."""

import pytest
import torch

from surefoot.engine.torch.flat import FlatParameters
from tests.building import CONTINUOUS, make_policy, make_rollout


@pytest.mark.parametrize("what", ["both", "critic"])
@pytest.mark.parametrize("config", [{}, {"shared_trunk": True}, {"memory": "gru", "memory_size": 4}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_gradient_is_that_of_backward(what, config, frozen):
    policy = make_policy(CONTINUOUS, **config)
    rollout = make_rollout(policy, steps=6, num_envs=5)
    flat = FlatParameters(policy)
    policy.actor.layers[0].weight.requires_grad_(not frozen)

    def loss():
        context = None if rollout.context is None else rollout.context.upto(6)
        outputs = policy.evaluate(rollout.inputs[:-1].flatten(0, 1), rollout.action.flatten(0, 1), context)
        value = outputs.value.square().sum()
        return value + outputs.log_prob.sum() if what == "both" else value

    loss().backward()
    expected = flat.gradient.clone()
    flat.gradient.fill_(7.0)  # whatever was there before
    flat.differentiate(loss())
    assert torch.equal(flat.gradient, expected)
    assert expected.any()
