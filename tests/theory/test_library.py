"""The losses and updates that train agents, fed exact quantities, give the exact gradients and keep their promises."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.algorithms import ALGORITHMS, ppo_penalty, trpo
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.learner import Learner
from surefoot.engine.torch.natural import fisher_by_autograd
from surefoot.math import returns
from surefoot.math.trust_region import flat_gradient
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.theory import divergence, exact, gradients, sampling, steps, worlds
from surefoot.theory.bridge import exact_batch, linear_policy, parameters_of, set_parameters, table_of, with_bias
from surefoot.theory.penalty import maximise_bound, maximise_mean_penalty
from surefoot.types import Rollout

WORLDS = {
    "random": worlds.random_mdp(np.random.default_rng(0), gamma=0.9),
    "ending": worlds.random_mdp(np.random.default_rng(1), gamma=0.8, terminal=2, branching=3),
    "grid": worlds.gridworld(3),
    "chain": worlds.chain(5),
    "cliff": worlds.cliff(blind=False),
    "blind cliff": worlds.cliff(),
}
PLAIN = {"normalize_advantage": "none", "entropy_coef": 0.0}


@pytest.fixture(params=WORLDS)
def mdp(request):
    return with_bias(WORLDS[request.param])


def parameters_for(mdp, seed=0, spread=1.0):
    return worlds.random_parameters(np.random.default_rng(seed), mdp, spread)


def make(name, **settings):
    kind = ALGORITHMS[name]
    known = kind.config_type.__dataclass_fields__
    return kind(kind.config_type(**{k: v for k, v in (PLAIN | settings).items() if k in known}))


def scalar_of(algorithm, policy, batch):
    """What the algorithm climbs: minus its loss, or its objective."""
    outputs = policy.evaluate(batch.obs, batch.action)
    terms = algorithm.terms(1.0)
    return -terms(outputs, batch)[0] if algorithm.train_actor else terms.objective(outputs, batch)


def actor_gradient(algorithm, policy, batch):
    """As `[D, A]`, the bias in the last row."""
    flat = flat_gradient(scalar_of(algorithm, policy, batch), policy.actor_parameters()).numpy()
    actions = policy.actor.head.out_features
    return np.vstack([flat[:-actions].reshape(actions, -1).T, flat[-actions:]])


def learner_for(policy, algorithm):
    generator = torch.Generator().manual_seed(0)
    return Learner(policy, algorithm.config, generator, train_actor=type(algorithm).train_actor)


def with_exact_estimate(algorithm, mdp, policy):
    """The algorithm, learning from the exact batch in the place of a rollout."""
    batch = exact_batch(mdp, policy)
    algorithm.estimate = lambda rollout, operations: batch
    return algorithm


class NoRollout:
    remaining = 1.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_loss_has_the_exact_gradient_of_the_return(mdp, name):
    theta = parameters_for(mdp)
    policy = linear_policy(mdp, theta)
    batch = exact_batch(mdp, policy)
    if name == "reinforce":  # it knows returns, not advantages: Q, whose baseline no gradient sees
        batch = replace(batch, advantage=batch.advantage + batch.value)
    rho = exact.visitation(mdp, mdp.policy(theta)).sum()
    expected = gradients.policy_gradient(mdp, theta) / rho
    found = actor_gradient(make(name, value_coef=0.0), policy, batch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max() + 1e-15)


def test_away_from_the_old_policy_the_losses_are_the_exact_objectives(mdp):
    theta = parameters_for(mdp)
    policy = linear_policy(mdp, theta)
    batch, old = exact_batch(mdp, policy), mdp.policy(theta)
    moved = theta + parameters_for(mdp, 1, 0.3)
    set_parameters(policy, moved)
    new, rho = mdp.policy(moved), exact.visitation(mdp, old).sum()
    gain = (exact.surrogate(mdp, old, new) - exact.expected_return(mdp, old)) / rho
    price = 7.0 * divergence.mean_kl(mdp, old, new)
    cases = {
        "trpo": ({}, gain, gradients.surrogate_gradient(mdp, old, moved) / rho),
        "ppo-penalty": ({"kl_coef": 7.0}, gain - price, gradients.penalised_gradient(mdp, old, moved, 7.0)),
        "ppo": (
            {"clip_ratio": 0.1},
            gradients.clipped_surrogate(mdp, old, moved, 0.1),
            gradients.clipped_gradient(mdp, old, moved, 0.1),
        ),
    }
    for name, (settings, value, gradient) in cases.items():
        algorithm = make(name, value_coef=0.0, **settings)
        assert scalar_of(algorithm, policy, batch).item() == pytest.approx(value, rel=1e-10, abs=1e-14), name
        found = actor_gradient(algorithm, policy, batch)
        np.testing.assert_allclose(found, gradient, rtol=0, atol=1e-10 * np.abs(gradient).max() + 1e-15, err_msg=name)


def test_the_librarys_fisher_matrix_is_the_exact_one(mdp):
    theta = parameters_for(mdp)
    policy = linear_policy(mdp, theta)
    product = fisher_by_autograd(policy, policy.actor_parameters(), exact_batch(mdp, policy), 0.0)
    vector = parameters_for(mdp, 2)  # [D, A]
    flat = torch.as_tensor(np.concatenate([vector[:-1].T.ravel(), vector[-1]]))
    found = product(flat).numpy()
    expected = (gradients.fisher(mdp, theta) @ vector.ravel()).reshape(vector.shape)
    scale = 1e-10 * np.abs(expected).max()
    np.testing.assert_allclose(found, np.concatenate([expected[:-1].T.ravel(), expected[-1]]), rtol=0, atol=scale)


def test_the_librarys_natural_step_spends_exactly_its_kl(mdp):
    """½·sᵀFs = δ with the exact F, and the gain it predicts is ∇L·s with the exact ∇L."""
    theta = parameters_for(mdp, spread=0.5)
    policy = linear_policy(mdp, theta)
    algorithm = make("npg", max_kl=0.02, cg_damping=0.0, cg_iterations=300)
    learner, batch = learner_for(policy, algorithm), exact_batch(mdp, policy)
    step, predicted = learner.natural_step(algorithm.terms(1.0), batch, algorithm.config)
    actions, flat = mdp.num_actions, step.numpy()
    move = np.vstack([flat[:-actions].reshape(actions, -1).T, flat[-actions:]])
    assert 0.5 * move.ravel() @ gradients.fisher(mdp, theta) @ move.ravel() == pytest.approx(0.02, rel=1e-9)
    rho = exact.visitation(mdp, mdp.policy(theta)).sum()
    slope = (gradients.policy_gradient(mdp, theta) * move).sum() / rho
    assert float(predicted) == pytest.approx(slope, rel=1e-9)
    natural = gradients.natural_gradient(mdp, theta)
    best = np.sqrt(0.04 * (gradients.policy_gradient(mdp, theta) * natural).sum() / rho)  # √(2δ·∇Lᵀ F⁺ ∇L)
    assert slope == pytest.approx(best, rel=1e-4)  # no direction gains more for this KL


def test_a_table_over_a_discrete_space_in_float32_agrees_too():
    """The network as the trainer builds it for these envs: one-hot inside, float32."""
    mdp = with_bias(worlds.gridworld(3))
    torch.manual_seed(0)
    discrete = (spaces.Discrete(mdp.num_states), spaces.Discrete(mdp.num_actions))
    policy = ActorCritic(*discrete, PolicyConfig(hidden_sizes=(), init="torch"))
    theta = parameters_of(policy)
    np.testing.assert_allclose(table_of(mdp, policy), mdp.policy(theta), atol=1e-6)
    expected = gradients.policy_gradient(mdp, theta) / exact.visitation(mdp, mdp.policy(theta)).sum()
    found = actor_gradient(make("vpg", value_coef=0.0), policy, exact_batch(mdp, policy))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("max_kl", [1e-3, 0.05])
def test_a_library_trpo_update_is_the_exact_one_and_keeps_its_kl(mdp, max_kl):
    """Damping 0 and CG to the end: the same policy as linear algebra gives, and D̄_KL ≤ δ."""
    theta = parameters_for(mdp, spread=0.5)
    policy = linear_policy(mdp, theta)
    algorithm = make("trpo", max_kl=max_kl, cg_damping=0.0, cg_iterations=300, value_epochs=1, value_minibatches=1)
    with_exact_estimate(algorithm, mdp, policy)
    metrics = algorithm.update(learner_for(policy, algorithm), NoRollout())
    old, new = mdp.policy(theta), table_of(mdp, policy)
    reached = divergence.mean_kl(mdp, old, new)
    assert reached <= max_kl * (1 + 1e-12)
    assert metrics["kl"] == pytest.approx(reached, rel=1e-5)
    assert metrics["surrogate_gain"] > 0.0
    expected = mdp.policy(steps.trpo_step(mdp, theta, max_kl=max_kl))
    np.testing.assert_allclose(new[mdp.live], expected[mdp.live], atol=2e-4)
    assert exact.expected_return(mdp, new) > exact.expected_return(mdp, old)


def test_with_its_default_damping_trpo_keeps_its_kl_on_many_tables():
    for seed in range(40):
        mdp = with_bias(worlds.random_mdp(np.random.default_rng(seed), gamma=0.9))
        theta = parameters_for(mdp, seed)
        policy = linear_policy(mdp, theta)
        algorithm = with_exact_estimate(make("trpo", value_epochs=1, value_minibatches=1), mdp, policy)
        algorithm.update(learner_for(policy, algorithm), NoRollout())
        old, new = mdp.policy(theta), table_of(mdp, policy)
        assert 0.0 < divergence.mean_kl(mdp, old, new) <= algorithm.config.max_kl * (1 + 1e-12)


def test_a_library_ppo_update_is_the_exact_one(mdp):
    """Ten epochs of Adam on the whole exact batch, weight by weight."""
    theta = parameters_for(mdp, spread=0.5)
    settings = {"num_minibatches": 1, "max_grad_norm": None, "value_coef": 0.0, "learning_rate": 0.03}
    for name, step in (
        ("ppo", lambda x: steps.ppo_clip_step(mdp, x, clip_ratio=0.2)),
        ("ppo-penalty", lambda x: steps.ppo_penalty_step(mdp, x, kl_coef=2.0)),
    ):
        policy = linear_policy(mdp, theta)
        algorithm = with_exact_estimate(make(name, kl_coef=2.0, **settings), mdp, policy)
        algorithm.update(learner_for(policy, algorithm), NoRollout())
        np.testing.assert_allclose(parameters_of(policy), step(theta), atol=1e-9, err_msg=name)


def test_clipping_sends_no_gradient_where_it_clips():
    mdp = with_bias(WORLDS["random"])
    theta = parameters_for(mdp)
    policy = linear_policy(mdp, theta)
    batch = exact_batch(mdp, policy)
    old, gain = mdp.policy(theta), exact.advantage(mdp, mdp.policy(theta))
    moved = np.vstack([np.log(old) + 3.0 * gain, np.zeros(mdp.num_actions)])  # far along the advantage
    set_parameters(policy, moved)
    ratio = (mdp.policy(moved) / old).ravel()
    beyond = np.where(gain.ravel() > 0.0, ratio > 1.2, ratio < 0.8)
    assert 3 < beyond.sum() < len(beyond)
    algorithm = make("ppo", value_coef=0.0, clip_ratio=0.2)
    only = replace(batch, weight=batch.weight * torch.as_tensor(beyond))
    np.testing.assert_array_equal(actor_gradient(algorithm, policy, only), 0.0)
    assert np.abs(actor_gradient(algorithm, policy, batch)).max() > 0.0
    # And the other way: a ratio that went wrong keeps its full gradient, however far.
    wrong = np.vstack([np.log(old) - 3.0 * gain, np.zeros(mdp.num_actions)])
    set_parameters(policy, wrong)
    expected = gradients.surrogate_gradient(mdp, old, wrong) / exact.visitation(mdp, old).sum()
    lost = np.where(gain > 0.0, mdp.policy(wrong) / old < 0.8, mdp.policy(wrong) / old > 1.2)
    only = replace(batch, weight=batch.weight * torch.as_tensor(lost.ravel()))
    whole = make("trpo")
    np.testing.assert_allclose(actor_gradient(algorithm, policy, only), actor_gradient(whole, policy, only), atol=1e-14)
    assert np.abs(expected).max() > 0.0


def test_clipping_bounds_neither_ratio_nor_kl():
    """One PPO update of the library on the cliff: ε = 0.2, and a ratio of 19 all the same."""
    mdp = with_bias(WORLDS["blind cliff"])
    theta = np.array([[0.0, -1.5], [0.0, -1.5]])
    policy = linear_policy(mdp, theta)
    algorithm = make("ppo", clip_ratio=0.2, learning_rate=0.3, num_minibatches=1, max_grad_norm=None, value_coef=0.0)
    with_exact_estimate(algorithm, mdp, policy)
    metrics = algorithm.update(learner_for(policy, algorithm), NoRollout())
    ratio = table_of(mdp, policy) / mdp.policy(theta)
    assert ratio[mdp.live].max() > 15.0
    assert metrics["kl_max"] > 1.0
    assert metrics["clip_fraction"] > 0.3


def test_the_bound_from_the_librarys_own_pieces():
    """Σρ·objective − C·max_s kl_to: the lecture's bound, and the step that maximises it improves η."""
    for seed in range(20):
        mdp = with_bias(worlds.random_mdp(np.random.default_rng(seed), gamma=0.9))
        theta = parameters_for(mdp, seed)
        policy = linear_policy(mdp, theta)
        batch, old = exact_batch(mdp, policy), mdp.policy(theta)
        best = maximise_bound(mdp, old)
        set_parameters(policy, np.vstack([np.log(best), np.zeros(mdp.num_actions)]))
        with torch.no_grad():
            outputs = policy.evaluate(batch.obs, batch.action)
            gain = float(make("trpo").terms(1.0).objective(outputs, batch)) * exact.visitation(mdp, old).sum()
            far = float(outputs.distribution.with_params(batch.dist_params).kl_to(outputs.distribution).max())
        bound = exact.expected_return(mdp, old) + gain - divergence.bound_constant(mdp, old) * far
        assert bound == pytest.approx(divergence.lower_bound(mdp, old, best), rel=1e-10)
        assert exact.expected_return(mdp, table_of(mdp, policy)) >= bound > exact.expected_return(mdp, old) + 1e-8


def test_the_penalty_loss_is_flat_at_the_exact_maximiser():
    mdp = with_bias(WORLDS["random"])
    theta = parameters_for(mdp)
    policy = linear_policy(mdp, theta)
    batch, old = exact_batch(mdp, policy), mdp.policy(theta)
    best = maximise_mean_penalty(mdp, old, 5.0)
    set_parameters(policy, np.vstack([np.log(best), np.zeros(mdp.num_actions)]))
    algorithm = ppo_penalty.PPOPenalty(ppo_penalty.Config(kl_coef=5.0, value_coef=0.0, normalize_advantage="none"))
    assert np.abs(actor_gradient(algorithm, policy, batch)).max() < 1e-12


def as_time_major(x, dtype=None):
    return torch.as_tensor(np.ascontiguousarray(np.swapaxes(x, 0, 1)), dtype=dtype)


def test_the_librarys_gae_is_ours_and_meets_the_exact_advantage():
    """E[Â | s, a] = A_π(s, a) at every λ, with the exact V; within five standard errors."""
    rng = np.random.default_rng(5)
    mdp = worlds.random_mdp(rng, states=4, actions=2, gamma=0.8, terminal=1)
    policy = worlds.random_policy(rng, mdp)
    value, gain = exact.state_value(mdp, policy), exact.advantage(mdp, policy)
    paths = sampling.sample(rng, mdp, policy, trajectories=20_000, steps=60)
    alive = as_time_major(paths.alive)
    delta = returns.td_error(
        *(as_time_major(x) for x in (paths.reward, value[paths.state], value[paths.after])),
        as_time_major(paths.terminated),
        mdp.gamma,
    ).masked_fill(~alive, 0.0)
    for gae_lambda in (0.0, 0.5, 1.0):
        found = returns.gae(delta, as_time_major(paths.terminated), mdp.gamma, gae_lambda).numpy().T
        np.testing.assert_allclose(found, sampling.gae(mdp, paths, value, gae_lambda), atol=1e-12)
        first = found[:, 0]
        for state, action in np.ndindex(3, 2):
            met = (paths.state[:, 0] == state) & (paths.action[:, 0] == action)
            error = first[met].mean() - gain[state, action]
            assert abs(error) < 5.0 * first[met].std() / np.sqrt(met.sum()), (state, action, gae_lambda)


def sampled_rollout(mdp, policy, rng, num_envs=16, length=32):
    """A rollout as the collector would bring it, its ends truncations; V is the network's own."""
    paths = sampling.sample(rng, mdp, table_of(mdp, policy), trajectories=num_envs, steps=length)
    inputs = torch.as_tensor(mdp.basis[:, :-1])
    obs = torch.cat([inputs[as_time_major(paths.state)], inputs[torch.as_tensor(paths.after[:, -1])][None]])
    action, ended = as_time_major(paths.action), as_time_major(paths.terminated)
    with torch.no_grad():
        params = policy.action_params(obs[:-1])
    rollout = Rollout(
        obs=obs,
        inputs=obs,
        action=action,
        dist_params=params,
        log_prob=policy.actions.distribution(params).log_prob(action),
        reward=as_time_major(paths.reward),
        terminated=ended,
        truncated=torch.zeros_like(ended),
        valid=as_time_major(paths.alive),
        value=torch.empty(0),
        next_value=torch.empty(0),
        final_index=torch.empty(0, dtype=torch.int64),
        final_inputs=torch.empty(0, obs.shape[-1], dtype=obs.dtype),
    )
    return fill_values(rollout, policy)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("num_envs", "length", "least", "most"), [(4, 8, 70, 99), (16, 32, 95, 100)])
def test_how_often_a_sampled_trpo_step_raises_the_return(num_envs, length, least, most):
    """No theorem: counted over 100 seeded MDPs, with an untrained critic, for 32 and for 512 samples.

    What is promised is the KL over the sampled states, and it is kept every time.
    """
    raised = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        mdp = with_bias(worlds.random_mdp(rng, gamma=0.9))
        policy = linear_policy(mdp, worlds.random_parameters(rng, mdp))
        before = exact.expected_return(mdp, table_of(mdp, policy))
        algorithm = trpo.TRPO(trpo.Config(gamma=0.9, value_epochs=1))
        rollout = sampled_rollout(mdp, policy, rng, num_envs, length)
        metrics = algorithm.update(learner_for(policy, algorithm), rollout)
        assert metrics["kl"] <= algorithm.config.max_kl * (1 + 1e-6)
        raised += int(exact.expected_return(mdp, table_of(mdp, policy)) > before)
    assert least <= raised <= most, raised
