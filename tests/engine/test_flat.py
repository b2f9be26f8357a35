"""All parameters in one vector, and their gradients."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.engine.torch.flat import FlatParameters
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
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


class Sparse(torch.nn.Module):
    """An encoder whose gradients are sparse, and which wants to hear of them."""

    size = 3

    def __init__(self, space):
        super().__init__()
        self.table = torch.nn.Embedding(4, self.size, sparse=True)
        self.heard = []
        self.table.weight.register_post_accumulate_grad_hook(self.heard.append)

    def forward(self, obs):
        return self.table((obs[""][:, 0] > 0).long())


def test_an_encoder_of_the_users_gets_its_gradient_by_backward():
    torch.manual_seed(0)
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    policy = ActorCritic(space, spaces.Discrete(2), PolicyConfig(encoder="own.py:Sparse"), encoder=Sparse)
    flat, encoder = FlatParameters(policy), policy.encoder
    flat.gradient.fill_(7.0)
    flat.differentiate(policy.action_params(torch.tensor([[0.5, 0.0], [0.5, 1.0]])).square().sum())
    place, own = next((place, p) for p, place in flat._places if p is encoder.module.table.weight)
    assert place[1].any()
    assert not place[[0, 2, 3]].any()
    assert own.grad.data_ptr() == place.data_ptr()
    assert encoder.module.heard
