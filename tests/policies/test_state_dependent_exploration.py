"""gSDE: what is drawn, what is scored, and what is held."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.math.exploration import LEAST_STD
from surefoot.policies.config import PolicyConfig
from surefoot.training.evaluation.agent import Agent
from tests.building import BOX4, CONTINUOUS, DISCRETE, make_policy

HYBRID = spaces.Dict(
    {
        "use": spaces.Discrete(3),
        "move": spaces.Box(-1.0, 1.0, (2,), np.float32),
        "both": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-2.0, 2.0, (1,), np.float32)]),
    }
)


def build(space=CONTINUOUS, **config):
    """With weights that are not tiny, so that means and stds differ from state to state."""
    policy = make_policy(space, std="gsde", init="torch", **config)
    with torch.no_grad():
        policy.log_std += 0.3 * torch.randn(policy.log_std.shape, generator=torch.Generator().manual_seed(1))
    return policy


def inputs(count, seed=0):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def act(policy, x, noise):
    with torch.no_grad():
        return policy.act(x, noise, None, None)


@pytest.mark.parametrize("width", [1, 64])
def test_the_initial_std_is_the_setting_where_the_features_have_a_mean_square_of_one(width):
    policy = make_policy(CONTINUOUS, std="gsde", log_std_init=-1.0, hidden_sizes=(width,))
    torch.testing.assert_close(policy.log_std, torch.full((width, 2), -1.0 - 0.5 * math.log(width)))
    policy.actor.hidden = lambda x: torch.ones(len(x), width)
    found = policy.actions.distribution(policy.action_params(inputs(3))).log_std
    torch.testing.assert_close(found, torch.full((3, 2), -1.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_density_entropy_and_kl_are_those_of_the_marginal(shared_trunk):
    policy, x = build(shared_trunk=shared_trunk), inputs(50)
    features = policy.last_hidden(x)[0]
    std = ((features**2) @ (2 * policy.log_std).exp() + LEAST_STD**2).sqrt()
    mean = torch.nn.functional.linear(features, policy.actor.head.weight, policy.actor.head.bias)
    reference = torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)
    action = mean + std * torch.randn(50, 2, generator=torch.Generator().manual_seed(2))
    outputs = policy.evaluate(x, action)
    torch.testing.assert_close(outputs.log_prob, reference.log_prob(action), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(outputs.distribution.entropy(), reference.entropy(), rtol=1e-5, atol=1e-5)
    assert std.std(0).min() > 0.0


def test_the_features_are_learned_through_the_mean_alone():
    policy, x = build(), inputs(20)
    log_std = policy.actions.distribution(policy.action_params(x)).log_std
    log_std.sum().backward()
    assert policy.log_std.grad.abs().min() > 0.0
    assert all(p.grad is None or not p.grad.any() for p in policy.actor.parameters())
    assert id(policy.log_std) in {id(p) for p in policy.actor_parameters()}


def test_within_a_stretch_the_noise_is_a_function_of_the_state():
    policy = build(sde_resample=3)
    noise = policy.noise(8, 2, torch.Generator().manual_seed(0))
    x = inputs(1).expand(2, 4)
    actions = torch.stack([act(policy, x, each)[1] for each in noise])  # [8, 2 envs, 2]
    for t in (0, 3, 6):
        assert torch.equal(actions[t], actions[min(t + 1, 7)])
        assert not torch.isclose(actions[t, 0], actions[t, 1]).any()  # every env has its own
    assert torch.equal(actions[0], actions[2])
    assert not torch.isclose(actions[2], actions[3]).any()
    assert not torch.isclose(actions[5], actions[6]).any()
    near, far = (act(policy, x + shift, noise[0])[1] - actions[0] for shift in (1e-3, 1.0))
    assert near.abs().max() < 0.01 < far.abs().max()


@pytest.mark.parametrize("steps", [1, 5])
def test_without_a_stretch_the_noise_lasts_for_the_rollout(steps):
    noise = build().noise(steps, 2, torch.Generator().manual_seed(0))
    assert len(noise) == steps
    assert len({each.matrix.data_ptr() for each in noise}) == 1
    assert noise[0].matrix.shape == (2, 65, 2)


def test_over_stretches_actions_are_drawn_as_their_density_says():
    """Mean and covariance of what a state is answered with, and how it goes together with another state's answer."""
    policy, count = build(), 40_000
    (noise,) = policy.noise(1, count, torch.Generator().manual_seed(0))
    x = inputs(2)
    drawn = [act(policy, row.expand(count, 4), noise) for row in x]
    for params, action, _ in drawn:
        d = policy.actions.distribution(params[:1])
        torch.testing.assert_close(action.mean(0), d.mean[0], rtol=0, atol=0.03)
        torch.testing.assert_close(torch.cov(action.T), torch.diag(d.log_std[0].exp() ** 2), rtol=0.05, atol=0.02)
    features = policy.actor.hidden(x).detach()
    expected = (features[0] * features[1]) @ (2 * policy.log_std.detach()).exp() + LEAST_STD**2
    left, right = ((action - params.chunk(2, -1)[0]) for params, action, _ in drawn)
    torch.testing.assert_close((left * right).mean(0), expected, rtol=0.05, atol=0.02)


def test_a_squashed_action_is_drawn_before_it_is_squashed():
    policy = build(action_bounds="tanh")
    (noise,) = policy.noise(1, 3, torch.Generator().manual_seed(0))
    params, action, _ = act(policy, inputs(3), noise)
    assert policy.actions.distribution(params).log_prob(action).isfinite().all()
    assert (np.abs(policy.actions.to_env(action.numpy())) <= 1.0).all()


def test_of_a_hybrid_action_only_the_gaussians_are_held():
    policy = build(HYBRID)
    noise = policy.noise(400, 1, torch.Generator().manual_seed(0))
    actions = torch.cat([act(policy, inputs(1), each)[1] for each in noise])
    varies = actions.std(0) > 0  # in the order of the keys: both (two bits, one number), move (two), use
    assert varies.tolist() == [True, True, False, False, False, True]
    assert policy.log_std.shape == (64, 3)
    # Each Gaussian dimension has the noise of its own column of the matrix.
    params, _, _ = act(policy, inputs(1), noise[0])
    means = [d.mean for d in _gaussians(policy.actions.distribution(params))]
    held = actions[:1, [2, 3, 4]] - torch.cat(means, -1)
    features = policy.actor.hidden(inputs(1)).detach()
    expected = (
        features @ (policy.log_std.detach().exp() * noise[0].matrix[0, :-1]) + LEAST_STD * noise[0].matrix[0, -1:]
    )
    torch.testing.assert_close(held, expected)


def _gaussians(distribution):
    """Those of a composite, in order."""
    for part in getattr(distribution, "distributions", [distribution]):
        if hasattr(part, "distributions"):
            yield from _gaussians(part)
        elif hasattr(part, "mean"):
            yield part


def test_a_memory_is_stepped_as_without_it():
    policy = build(memory="gru")
    x, memory, start = inputs(3), torch.randn(3, 64), torch.tensor([True, False, False])
    (noise,) = policy.noise(1, 3, torch.Generator().manual_seed(0))
    with torch.no_grad():
        params, _, after = policy.act(x, noise, memory, start)
        expected = policy.step(x, memory, start)
    assert torch.equal(params, expected[0])
    assert torch.equal(after, expected[1])


@pytest.mark.parametrize("raw", [-1e4, 1e4])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_runaway_std_keeps_density_and_draw_finite(raw, activation):
    policy = build(activation=activation)
    with torch.no_grad():
        policy.log_std.fill_(raw)
    (noise,) = policy.noise(1, 5, torch.Generator().manual_seed(0))
    params, action, _ = act(policy, 100.0 * inputs(5), noise)
    d = policy.actions.distribution(params)
    assert all(value.isfinite().all() for value in (action, d.log_prob(action), d.entropy()))


def test_a_linear_policy_explores_by_its_inputs():
    assert build(hidden_sizes=()).log_std.shape == (4, 2)


def test_a_discrete_policy_has_nothing_to_explore_with():
    policy = make_policy(DISCRETE, std="gsde")
    assert not policy.sde
    assert policy.log_std is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"std": "gsde", "action_bounds": "beta"}, "std has no effect with action_bounds=beta"),
        ({"sde_resample": 4}, "sde_resample has no effect with std=parameter; set std=gsde"),
        ({"std": "gsde", "sde_resample": 0}, "sde_resample=0 is too small"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        PolicyConfig(**settings)


def test_the_start_of_a_run_says_how_it_explores():
    assert build().describe() == ["exploration: gSDE, redrawn for each rollout"]
    assert build(sde_resample=8).describe() == ["exploration: gSDE, redrawn every 8 steps"]


def predicted(agent, obs, start):
    return agent.predict(obs, episode_start=start, deterministic=False)[0]


def test_an_agent_holds_its_noise_from_one_start_of_an_episode_to_the_next():
    obs, agent = inputs(3).numpy(), Agent(build(BOX4))
    first = predicted(agent, obs, [True, True, True])
    assert np.array_equal(predicted(agent, obs, [False, False, False]), first)
    third = predicted(agent, obs, [False, True, False])
    assert np.array_equal(third[[0, 2]], first[[0, 2]])
    assert not np.isclose(third[1], first[1]).any()
    assert np.array_equal(predicted(agent, obs, False), third)
    assert not np.isclose(predicted(agent, obs[:2], [False, False]), third[:2]).any()  # others than before


def test_an_agent_that_is_not_told_of_episodes_draws_anew_and_a_stretch_ends():
    obs, agent = inputs(1)[0].numpy(), Agent(build(BOX4))
    assert not np.isclose(predicted(agent, obs, None), predicted(agent, obs, None)).any()
    agent = Agent(build(BOX4, sde_resample=2))
    drawn = [predicted(agent, obs, t == 0) for t in range(6)]
    assert [np.array_equal(drawn[t], drawn[t + 1]) for t in range(5)] == [True, False, True, False, True]
    assert np.array_equal(agent.predict(obs)[0], agent.predict(obs)[0])  # greedily, there is no noise
