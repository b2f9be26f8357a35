import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.backends import cudnn

from surefoot.errors import UsageError
from surefoot.math.trust_region import flat_gradient
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.policies.memory import Memory
from surefoot.policies.mlp import MLP
from surefoot.types import Context

OBS = spaces.Box(-np.inf, np.inf, (5,), np.float32)
DISCRETE, BOX = spaces.Discrete(3), spaces.Box(np.array([-1.0, 0.0]), np.array([3.0, 1.0]), dtype=np.float64)


def build(action_space=DISCRETE, obs_space=OBS, critic=True, **config):
    torch.manual_seed(0)
    return ActorCritic(obs_space, action_space, PolicyConfig(**config), critic=critic)


def ids(parameters):
    return [id(p) for p in parameters]


def linear_layers(module):
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def assert_orthogonal(weight, gain):
    """The shorter side's rows are orthogonal, each of norm `gain`."""
    weight = weight.detach() if weight.shape[0] <= weight.shape[1] else weight.detach().T
    torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_orthogonal_init_has_the_three_gains_and_zero_biases(action_space, shared_trunk):
    policy = build(action_space, shared_trunk=shared_trunk, hidden_sizes=(16, 8))
    heads = {policy.actor.head: 0.01, policy.critic.head: 1.0}
    layers = linear_layers(policy)
    assert len(layers) == (4 if shared_trunk else 6)
    for layer in layers:
        assert_orthogonal(layer.weight, heads.get(layer, math.sqrt(2)))
        assert not layer.bias.any()


def test_init_torch_leaves_the_layers_as_pytorch_makes_them():
    policy = build(init="torch", hidden_sizes=(16,))
    torch.manual_seed(0)
    expected = MLP([5, 16, 3], "tanh")
    for ours, theirs in zip(policy.actor.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_first_policy_is_nearly_even():
    policy = build()
    log_probs = policy.actions.distribution(policy.action_params(torch.randn(100, 5))).log_probs
    torch.testing.assert_close(log_probs.exp(), torch.full((100, 3), 1 / 3), atol=0.02, rtol=0)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX])
@pytest.mark.parametrize("config", [{}, {"shared_trunk": True}, {"std": "state"}, {"normalize_observations": True}])
@pytest.mark.parametrize("critic", [True, False])
def test_actor_and_critic_parameters_cover_the_policy_once(action_space, config, critic):
    policy = build(action_space, critic=critic, **config)
    both = ids(policy.actor_parameters()) + ids(policy.critic_parameters())
    assert len(both) == len(set(both))
    assert set(both) == set(ids(policy.parameters()))


@pytest.mark.parametrize("config", [{}, {"shared_trunk": True}, {"std": "state"}])
def test_actor_parameters_are_those_that_the_action_depends_on(config):
    policy = build(BOX, **config)
    x, action = torch.randn(7, 5), torch.randn(7, 2)
    outputs = policy.evaluate(x, action)
    for parameter in policy.actor_parameters():
        assert flat_gradient(outputs.log_prob.sum(), [parameter], retain_graph=True).any()
    for parameter in policy.critic_parameters():
        assert not flat_gradient(outputs.log_prob.sum(), [parameter], retain_graph=True).any()
        assert flat_gradient(outputs.value.sum(), [parameter], retain_graph=True).any()


def test_shared_trunk_belongs_to_the_actor():
    policy = build(shared_trunk=True)
    assert set(ids(policy.trunk.parameters())) <= set(ids(policy.actor_parameters()))
    assert policy.critic_parameters() == list(policy.critic.parameters())


def test_log_std_belongs_to_the_actor():
    policy = build(BOX)
    assert id(policy.log_std) in ids(policy.actor_parameters())
    assert build(DISCRETE).log_std is None
    assert build(BOX, std="state").log_std is None


def test_separate_networks_share_nothing():
    policy = build(BOX)
    x = torch.randn(4, 5)
    before = policy.value(x)
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter.add_(1.0)
    assert torch.equal(policy.value(x), before)


@pytest.mark.parametrize("std", ["parameter", "state"])
@pytest.mark.parametrize("log_std_init", [0.0, -1.6, 0.7])
def test_initial_standard_deviation_is_the_setting(std, log_std_init):
    policy = build(BOX, std=std, log_std_init=log_std_init)
    d = policy.actions.distribution(policy.action_params(torch.zeros(3, 5)))
    torch.testing.assert_close(d.log_std, torch.full((3, 2), log_std_init))


def test_state_dependent_std_is_the_softplus_of_the_second_half_of_the_head():
    policy = build(BOX, std="state", init="torch")
    x = torch.randn(6, 5)
    mean, raw = policy.actor(x)[:, :2], policy.actor(x)[:, 2:]
    d = policy.actions.distribution(policy.action_params(x))
    torch.testing.assert_close(d.mean, mean)
    torch.testing.assert_close(d.log_std.exp(), torch.log1p(raw.exp()))
    assert d.log_std.std(0).min() > 0


@pytest.mark.parametrize("std", ["parameter", "state"])
@pytest.mark.parametrize("raw", [-1e4, 1e4])
def test_a_runaway_std_keeps_density_and_entropy_finite(std, raw):
    policy = build(BOX, std=std)
    with torch.no_grad():
        (policy.actor.head.bias if std == "state" else policy.log_std).fill_(raw)
    outputs = policy.evaluate(torch.zeros(1, 5), torch.ones(1, 2))
    assert outputs.log_prob.isfinite().all()
    assert outputs.distribution.entropy().isfinite().all()


def test_tanh_mean_stays_within_the_bounds_and_starts_at_their_centre():
    policy = build(BOX, tanh_mean=True)
    start = policy.actions.distribution(policy.action_params(torch.zeros(1, 5))).mean
    torch.testing.assert_close(start, torch.tensor([[1.0, 0.5]]))  # the bounds are [−1, 3] and [0, 1]
    with torch.no_grad():
        policy.actor.head.weight.mul_(1e6)
    mean = policy.actions.distribution(policy.action_params(torch.randn(1000, 5))).mean
    assert (mean >= torch.tensor([-1.0, 0.0])).all()
    assert (mean <= torch.tensor([3.0, 1.0])).all()
    torch.testing.assert_close(mean.amax(0), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(mean.amin(0), torch.tensor([-1.0, 0.0]))


def test_tanh_mean_by_hand():
    policy = build(BOX, tanh_mean=True)
    with torch.no_grad():
        policy.actor.head.weight.zero_()
        policy.actor.head.bias.copy_(torch.tensor([math.atanh(0.5), math.atanh(-0.5)]))
    # 1 + 2·0.5 = 2;  0.5 − 0.5·0.5 = 0.25
    assert policy.action_params(torch.zeros(1, 5))[0, :2].tolist() == pytest.approx([2.0, 0.25])


@pytest.mark.parametrize(
    ("space", "word"),
    [
        (DISCRETE, "continuous"),
        (spaces.Box(-np.inf, np.inf, (2,)), "bounded"),
        (spaces.Box(0, np.inf, (1,)), "bounded"),
    ],
)
def test_tanh_mean_needs_a_bounded_box(space, word):
    with pytest.raises(UsageError, match=word):
        build(space, tanh_mean=True)


@pytest.mark.parametrize("action_space", [DISCRETE, BOX])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_evaluate_agrees_with_the_separate_methods(action_space, shared_trunk):
    policy = build(action_space, shared_trunk=shared_trunk)
    x = torch.randn(11, 5)
    params = policy.action_params(x)
    action = policy.actions.draw(params, policy.actions.noise((11,), torch.Generator().manual_seed(0)))
    outputs = policy.evaluate(x, action)
    assert torch.equal(outputs.value, policy.value(x))
    assert torch.equal(outputs.log_prob, policy.actions.distribution(params).log_prob(action))
    assert outputs.value.shape == outputs.log_prob.shape == (11,)


def test_batch_axes_are_kept():
    policy = build(BOX)
    x = torch.randn(4, 3, 5)
    assert policy.action_params(x).shape == (4, 3, 4)
    assert policy.value(x).shape == (4, 3)
    torch.testing.assert_close(policy.value(x), policy.value(x.flatten(0, 1)).view(4, 3))


def test_without_a_critic_the_value_is_zero():
    policy = build(critic=False)
    assert policy.value(torch.randn(4, 3, 5)).tolist() == torch.zeros(4, 3).tolist()
    assert not policy.evaluate(torch.randn(4, 5), torch.zeros(4, dtype=torch.int64)).value.any()
    assert policy.critic_parameters() == []


def test_the_network_has_the_widths_asked_for():
    policy = build(hidden_sizes=(7, 6), critic_hidden_sizes=(9,))
    assert [tuple(m.weight.shape) for m in linear_layers(policy.actor)] == [(7, 5), (6, 7), (3, 6)]
    assert [tuple(m.weight.shape) for m in linear_layers(policy.critic)] == [(9, 5), (1, 9)]


def test_no_hidden_layer_is_a_linear_policy():
    policy = build(hidden_sizes=())
    assert [tuple(m.weight.shape) for m in linear_layers(policy)] == [(3, 5), (1, 5)]


def test_shared_trunk_needs_a_hidden_layer():
    with pytest.raises(UsageError, match="hidden_sizes"):
        build(shared_trunk=True, hidden_sizes=())


def test_shared_trunk_with_an_own_critic_is_refused():
    with pytest.raises(UsageError, match="critic_hidden_sizes"):
        PolicyConfig(shared_trunk=True, critic_hidden_sizes=(8,))


@pytest.mark.parametrize(
    ("name", "function"), [("tanh", torch.tanh), ("relu", torch.relu), ("elu", nn.ELU()), ("silu", nn.SiLU())]
)
def test_mlp_applies_the_activation_between_its_layers(name, function):
    net = MLP([3, 4, 2], name)
    x = torch.randn(5, 3)
    first, second = net.layers
    torch.testing.assert_close(net(x), second(function(first(x))))
    trunk = MLP([3, 4], name, activate_last=True)
    torch.testing.assert_close(trunk(x), function(trunk.layers[0](x)))


@pytest.mark.parametrize(
    ("space", "inputs"),
    [
        (spaces.Box(-1, 1, ()), 1),
        (spaces.Box(-1, 1, (4,)), 4),
        (spaces.Box(-1, 1, (2, 3)), 6),
        (spaces.Box(0, 255, (6,), np.uint8), 6),
        (spaces.Box(0, 9, (2,), np.int64), 2),
    ],
)
def test_a_box_of_numbers_becomes_flat_float32_inputs(space, inputs):
    policy = build(obs_space=space)
    obs = torch.from_numpy(np.stack([[space.sample() for _ in range(3)] for _ in range(2)]))
    x = policy.normalize(obs)
    assert x.dtype == torch.float32
    assert x.shape == (2, 3, inputs)
    assert torch.equal(x, obs.float().reshape(2, 3, inputs))
    assert policy.value(x).shape == (2, 3)


def test_a_normalised_policy_normalises():
    policy = build(normalize_observations=True)
    policy.normalizer.merge(torch.tensor([[1.0] * 5, [5.0] * 5]))
    # mean 3, variance 4:  (7 − 3)/2 = 2
    torch.testing.assert_close(policy.normalize(torch.full((4, 2, 5), 7.0)), torch.full((4, 2, 5), 2.0))


def test_normalised_policy_saves_its_statistics():
    policy = build(normalize_observations=True)
    policy.normalizer.merge(torch.randn(50, 5) * 3 + 2)
    other = build(normalize_observations=True)
    other.load_state_dict(policy.state_dict())
    other.normalizer.refresh()
    obs = torch.randn(4, 5)
    assert torch.equal(other.normalize(obs), policy.normalize(obs))


def test_without_normalisation_float32_observations_pass_untouched():
    obs = torch.randn(4, 5) * 100
    assert torch.equal(build().normalize(obs), obs)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_memory_never_runs_on_cudnn_which_cannot_be_differentiated_twice(kind):
    memory, seen = Memory(kind, 3, 4), []
    memory.net.register_forward_hook(lambda *_: seen.append(cudnn.enabled))
    memory.step(torch.zeros(2, 3), torch.zeros(2, memory.size), torch.ones(2, dtype=torch.bool))
    start = torch.tensor([[True, False], [False, True]])
    memory(torch.zeros(4, 3), Context(start, torch.zeros(2, memory.size)))
    assert seen == [False, False]
    assert cudnn.enabled
