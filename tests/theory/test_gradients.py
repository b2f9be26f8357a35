"""Exact gradients against the complex-step derivative of η itself, and the steps that follow them."""

import numpy as np
import pytest

from surefoot.theory import divergence, exact, gradients, steps, worlds
from tests.theory.worlds_for_tests import cases, close

TABLES = [(mdp, np.log(old)) for mdp, old, _ in cases() if mdp.gamma in (0.1, 0.9, 0.99)]


def derivative(function, policy, change, width=1e-30):
    """d/dt f(π + t·change) at 0 from the imaginary part of f: no difference is taken, so nothing is lost."""
    return function(policy + 1j * width * change).imag / width


def softmax_change(policy, logits):
    """dπ along a change of the logits."""
    return policy * (logits - (policy * logits).sum(-1, keepdims=True))


@pytest.mark.parametrize(("mdp", "theta"), TABLES)
def test_surrogate_and_return_have_one_gradient(mdp, theta):
    """∇L = ∇η at π: the policy-gradient theorem, against a derivative that knows nothing of it."""
    rng = np.random.default_rng(0)
    policy = mdp.policy(theta)
    for _ in range(3):
        move = rng.normal(size=theta.shape)
        slope = derivative(lambda p: exact.expected_return(mdp, p), policy, softmax_change(policy, move))
        scale = np.abs(exact.state_value(mdp, policy)).max(-1) / (1.0 - mdp.gamma)
        for gradient in (gradients.policy_gradient(mdp, theta), gradients.surrogate_gradient(mdp, policy, theta)):
            assert close((gradient * move).sum((-2, -1)), slope, scale)


def test_gradients_with_shared_parameters_and_away_from_the_old_policy():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(6, 3))
    base = worlds.random_mdp(rng)
    mdp = type(base)(**{**vars(base), "features": features})
    theta, old = worlds.random_parameters(rng, mdp), worlds.random_policy(rng, mdp)
    share, gain = gradients.weights(mdp, old), exact.advantage(mdp, old)

    def penalised(x):
        return exact.expected_gain(share, mdp.policy(x), gain) - 3.0 * divergence.mean_kl(mdp, old, mdp.policy(x))

    pairs = {
        "η": (lambda x: exact.expected_return(mdp, mdp.policy(x)), gradients.policy_gradient(mdp, theta)),
        "L": (lambda x: exact.surrogate(mdp, old, mdp.policy(x)), gradients.surrogate_gradient(mdp, old, theta)),
        "clip": (
            lambda x: gradients.clipped_surrogate(mdp, old, x, 0.2),
            gradients.clipped_gradient(mdp, old, theta, 0.2),
        ),
        "penalty": (penalised, gradients.penalised_gradient(mdp, old, theta, 3.0)),
    }
    for name, (function, gradient) in pairs.items():
        found = gradients.numerical_gradient(function, theta)
        np.testing.assert_allclose(gradient, found, rtol=1e-7, atol=1e-9, err_msg=name)


def test_fisher_is_the_hessian_of_the_mean_kl():
    rng = np.random.default_rng(2)
    mdp = worlds.random_mdp(rng, states=3, actions=3)
    theta = worlds.random_parameters(rng, mdp)
    old = mdp.policy(theta)
    rows = [
        gradients.numerical_gradient(
            lambda x, i=i: (
                -gradients.penalised_gradient(mdp, old, x, 1.0).flat[i]
                + gradients.penalised_gradient(mdp, old, x, 0.0).flat[i]
            ),
            theta,
        ).ravel()
        for i in range(9)
    ]
    np.testing.assert_allclose(gradients.fisher(mdp, theta), rows, atol=1e-9)


@pytest.mark.parametrize(("mdp", "theta"), TABLES[:4])
def test_the_natural_gradient_of_a_table_is_its_advantage(mdp, theta):
    """F⁺∇L = A_π up to a constant per state, where every state is visited."""
    theta = theta / 4  # no odds of 1e-6: the pseudo-inverse would drop them
    policy = mdp.policy(theta)
    difference = gradients.natural_gradient(mdp, theta) - exact.advantage(mdp, policy)
    spread = np.ptp(difference, axis=-1)[:, mdp.live]
    assert np.abs(spread).max() < 1e-6


@pytest.mark.parametrize("max_kl", [1e-3, 1e-2, 0.1])
def test_an_exact_trpo_step_keeps_its_promise_on_every_mdp(max_kl):
    moved = 0
    for mdp, theta in TABLES:
        new = steps.trpo_step(mdp, theta, max_kl=max_kl)
        old_policy, policy = mdp.policy(theta), mdp.policy(new)
        assert np.all(divergence.mean_kl(mdp, old_policy, policy) <= max_kl)
        gain = exact.surrogate(mdp, old_policy, policy) - exact.surrogate(mdp, old_policy, old_policy)
        still = np.all(new == theta, axis=(-2, -1))
        assert np.all(still | (gain > 0.0))
        moved += int((~still).sum())
    assert moved > 0.95 * sum(len(theta) for _, theta in TABLES)


@pytest.mark.parametrize("rate", [0.1, 10.0, 1e3])
def test_a_table_never_falls_by_an_exact_step_of_any_size(rate):
    """Each state's E_π̃[A_π] is ≥ 0 for gradient and natural steps alike, so the identity forbids a fall."""
    for mdp, theta in TABLES:
        before = exact.expected_return(mdp, mdp.policy(theta))
        slack = 1e-9 * np.abs(exact.state_value(mdp, mdp.policy(theta))).max(-1)
        along = exact.advantage(mdp, mdp.policy(theta))
        for new in (steps.gradient_step(mdp, theta, learning_rate=rate), theta + rate * along):
            assert np.all(exact.expected_return(mdp, mdp.policy(new)) >= before - slack)


def test_shared_parameters_do_fall_and_trust_regions_do_not():
    mdp, start = worlds.cliff(), np.array([[0.0, -3.0]])

    def heights(step, updates=100):
        return exact.expected_return(mdp, mdp.policy(np.stack(steps.climb(step, start, updates))))

    small = heights(lambda x: steps.gradient_step(mdp, x, learning_rate=0.03))
    large = heights(lambda x: steps.gradient_step(mdp, x, learning_rate=3.0))
    trpo = heights(lambda x: steps.trpo_step(mdp, x, max_kl=0.01))
    clip = heights(lambda x: steps.ppo_clip_step(mdp, x))
    penalty = heights(lambda x: steps.ppo_penalty_step(mdp, x, kl_coef=10.0))
    assert np.all(np.diff(small) > 0.0)
    assert small[-1] < 0.5  # safe, and nowhere
    assert large.min() < -4.0  # over the edge
    assert large[-1] < 0.01  # and not back after a hundred updates
    for path in (trpo, clip, penalty):
        assert path[-1] > 1.8
        assert path.min() >= path[0]
        assert np.diff(path).min() > -0.4


def test_penalty_and_clip_steps_climb_their_own_objectives():
    rng = np.random.default_rng(4)
    mdp = worlds.random_mdp(rng, batch=(200,))
    theta = worlds.random_parameters(rng, mdp)
    old = mdp.policy(theta)
    clipped = gradients.clipped_surrogate(mdp, old, steps.ppo_clip_step(mdp, theta), 0.2)
    assert np.all(clipped > gradients.clipped_surrogate(mdp, old, theta, 0.2))
    new = mdp.policy(steps.ppo_penalty_step(mdp, theta, kl_coef=1.0))
    gain = (exact.surrogate(mdp, old, new) - exact.surrogate(mdp, old, old)) * (1.0 - mdp.gamma)
    assert np.all(gain - divergence.mean_kl(mdp, old, new) > 0.0)
