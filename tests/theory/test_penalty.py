"""Monotone improvement: the maximiser of the bound, and what the mean KL does and does not promise."""

import numpy as np
import pytest

from surefoot.theory import divergence, exact, worlds
from surefoot.theory.penalty import maximise_bound, maximise_mean_penalty
from tests.theory.worlds_for_tests import cases


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.3, 0.9, 0.99])
def test_it_is_the_maximiser(gamma):
    """No neighbour has a higher bound, every state is at the same KL, and that KL is the best."""
    rng = np.random.default_rng(0)
    mdp = worlds.random_mdp(rng, batch=(100,), gamma=gamma, terminal=1)
    old = worlds.random_policy(rng, mdp)
    best = maximise_bound(mdp, old)
    np.testing.assert_allclose(best.sum(-1), 1.0, rtol=1e-12)
    top = divergence.lower_bound(mdp, old, best)
    assert np.all(top > exact.expected_return(mdp, old))
    if gamma == 0.0:
        assert np.all(best[:, mdp.live].max(-1) == 1.0)
        return
    distances = divergence.kl(old, best)[:, mdp.live]
    np.testing.assert_allclose(distances, distances.max(-1, keepdims=True).repeat(5, -1), rtol=1e-6)
    width = np.sqrt(distances.max(-1))[:, None, None]
    for size in (1e-4, 1e-2, 0.3):
        for _ in range(20):
            near = best * np.exp(size * width * rng.normal(size=best.shape))
            near /= near.sum(-1, keepdims=True)
            assert np.all(divergence.lower_bound(mdp, old, near) <= top + 1e-12 * np.abs(top))


def test_one_state_by_hand():
    """A bandit repeated for ever: r = ±1, π = ½, γ = ½. A = ±1, ε = 1, C = 8, Σρ = 2.

    q = ½ + d earns 2·2d − 8·KL, and KL(½‖½+d) = −½·log(1 − 4d²): the slope 4 − 8·4d/(1 − 4d²) vanishes where
    1 − 4d² = 8d, at d = (√5 − 2)/2.
    """
    base = worlds.random_mdp(np.random.default_rng(0), states=2, actions=2, gamma=0.5)
    reward = np.zeros_like(base.reward)
    reward[:, 0], reward[:, 1] = -1.0, 1.0
    mdp = type(base)(**{**vars(base), "reward": reward})
    best = maximise_bound(mdp, mdp.uniform())
    np.testing.assert_allclose(best[:, 1] - 0.5, (np.sqrt(5.0) - 2.0) / 2.0, rtol=1e-8)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9])
def test_every_step_of_the_bound_improves_until_it_converges(gamma):
    rng = np.random.default_rng(1)
    mdp = worlds.random_mdp(rng, batch=(60,), gamma=gamma, states=4)
    policy = mdp.uniform()
    eta = exact.expected_return(mdp, policy)
    steps = 0
    for _ in range(300):
        new = maximise_bound(mdp, policy)
        sure = divergence.lower_bound(mdp, policy, new) - eta
        after = exact.expected_return(mdp, new)
        going = sure > 1e-8  # else no policy has a better bound: converged
        assert np.all((after - eta)[going] > 1e-8)
        assert np.all(after - eta >= sure - 1e-12)
        steps += int(going.sum())
        policy, eta = new, after
        if not going.any():
            break
    assert steps > 600


def test_at_the_optimum_it_stands_still():
    mdp = worlds.random_mdp(np.random.default_rng(2), gamma=0.9)
    policy = mdp.uniform()
    for _ in range(50):  # policy iteration
        policy = np.eye(mdp.num_actions)[exact.action_value(mdp, policy).argmax(-1)]
    np.testing.assert_array_equal(maximise_bound(mdp, policy), policy)


@pytest.mark.parametrize("kl_coef", [1e-3, 1.0, 100.0])
def test_for_a_table_the_mean_kl_improves_too_at_any_price(kl_coef):
    """No counterexample among tables: each state's own maximiser has E[A] ≥ 0, and the identity does the rest."""
    for mdp, old, _ in cases():
        new = maximise_mean_penalty(mdp, old, kl_coef)
        assert np.all(
            (new * exact.advantage(mdp, old)).sum(-1) >= -1e-10 * (1.0 + divergence.max_advantage(mdp, old)[:, None])
        )
        slack = 1e-10 * np.maximum(1.0, np.abs(exact.state_value(mdp, old)).max(-1))
        assert np.all(exact.expected_return(mdp, new) >= exact.expected_return(mdp, old) - slack)


def test_the_mean_penalty_is_maximised_state_by_state():
    rng = np.random.default_rng(3)
    mdp = worlds.random_mdp(rng, batch=(50,))
    old = worlds.random_policy(rng, mdp)
    gain = exact.advantage(mdp, old)

    def value(policy):
        return (policy * gain).sum(-1) - 2.0 * divergence.kl(old, policy)

    best = maximise_mean_penalty(mdp, old, 2.0)
    for size in (1e-3, 0.1):
        near = best * np.exp(size * rng.normal(size=best.shape))
        assert np.all(value(near / near.sum(-1, keepdims=True)) <= value(best) + 1e-12)


def test_with_shared_parameters_the_mean_kl_can_fail_where_the_maximum_does_not():
    """On the ledge, max L − C·mean KL lowers η by 2.5e-5, though it promises 2.9e-5. The maximum KL stays put."""
    mdp = worlds.ledge()
    theta = np.linspace(0.0, 1.0, 1001)
    parameters = np.zeros((len(theta), 2, 2))
    parameters[:, 0, 1], parameters[:, 1, 1] = theta, 1.0
    policies = mdp.policy(parameters)
    old = policies[0]
    np.testing.assert_allclose(old[:2, 1], [0.3, 0.5])
    constant = divergence.bound_constant(mdp, old)
    gain = exact.surrogate(mdp, old, policies) - exact.expected_return(mdp, old)
    truth = exact.expected_return(mdp, policies) - exact.expected_return(mdp, old)
    by_mean = gain - constant * divergence.mean_kl(mdp, old, policies)
    by_max = gain - constant * divergence.max_kl(mdp, old, policies)
    chosen = int(by_mean.argmax())
    assert by_mean[chosen] == pytest.approx(2.927e-5, rel=1e-3)
    assert truth[chosen] == pytest.approx(-2.5e-5, rel=1e-9)
    assert np.all(by_max <= truth + 1e-15)
    assert truth[int(by_max.argmax())] >= 0.0
