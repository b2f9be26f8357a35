"""Monte-Carlo estimates: unbiased, at the rate 1/√N; GAE's moments by linear algebra against samples."""

from dataclasses import replace

import numpy as np
import pytest

from surefoot.theory import estimators, exact, gradients, sampling, worlds
from tests.theory.worlds_for_tests import cases, close

STEPS = 40  # 0.5^40 is 1e-12


def setup(kind):
    rng = np.random.default_rng(11)
    if kind == "cliff":
        mdp = worlds.cliff(4, gamma=0.5)
        return rng, mdp, mdp.policy(np.array([[0.0, 0.3]])), mdp.policy(np.array([[0.0, 0.8]]))
    mdp = worlds.random_mdp(rng, states=4, actions=3, gamma=0.5, terminal=1 if kind == "ending" else 0)
    return rng, mdp, worlds.random_policy(rng, mdp), worlds.random_policy(rng, mdp)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["endless", "ending", "cliff"])
def test_every_estimator_converges_to_its_exact_value_at_the_right_rate(kind):
    rng, mdp, old, new = setup(kind)
    groups, most = 64, 512
    paths = sampling.sample(rng, mdp, old, trajectories=groups * most, steps=STEPS)
    gain, value = exact.advantage(mdp, old), exact.state_value(mdp, old)
    theta = np.linalg.lstsq(mdp.basis, np.log(old), rcond=None)[0]
    gradient = gradients.policy_gradient(mdp, theta)
    surrogate = exact.surrogate(mdp, old, new) - exact.expected_return(mdp, old)
    estimates = {
        "return": (sampling.returns(mdp, paths), exact.expected_return(mdp, old)),
        "visitation": (sampling.visits(mdp, paths), exact.visitation(mdp, old)),
        "surrogate": (sampling.importance_gain(mdp, paths, old, new, gain), surrogate),
        "gradient": (sampling.policy_gradients(mdp, paths, old), gradient),
        "gradient with baseline": (sampling.policy_gradients(mdp, paths, old, value), gradient),
    }
    for name, (samples, truth) in estimates.items():
        error = np.abs(samples.mean(0) - truth)
        assert np.all(error <= 5.0 * samples.std(0) / np.sqrt(len(samples)) + 1e-9), name
        sizes = np.array([4, 32, 128, most])
        rms = []
        for size in sizes:
            means = samples[: groups * size].reshape(groups, size, *samples.shape[1:]).mean(1)
            rms.append(np.sqrt(((means - truth) ** 2).mean()))
        slope = np.polyfit(np.log(sizes), np.log(rms), 1)[0]
        assert slope == pytest.approx(-0.5, abs=0.07), name


def test_a_baseline_takes_variance_away_and_nothing_else():
    rng, mdp, old, _ = setup("endless")
    mdp = replace(mdp, reward=mdp.reward + 3.0)  # good or bad, everything pays
    paths = sampling.sample(rng, mdp, old, trajectories=5_000, steps=STEPS)
    plain = sampling.policy_gradients(mdp, paths, old)
    less = sampling.policy_gradients(mdp, paths, old, exact.state_value(mdp, old))
    assert less.var(0).sum() < 0.2 * plain.var(0).sum()


def test_drawing_reaches_no_state_that_is_impossible():
    mdp = worlds.cliff(5)
    paths = sampling.sample(np.random.default_rng(0), mdp, mdp.uniform(), trajectories=2000, steps=100)
    moves = mdp.transition[paths.state, paths.action, paths.after][paths.alive]
    assert np.all(moves > 0.0)
    assert paths.terminated.sum(1).max() == 1
    assert not paths.alive[:, 1:][paths.terminated[:, :-1]].any()


@pytest.mark.parametrize("gae_lambda", [0.0, 0.6, 0.95, 1.0])
def test_gaes_moments_are_what_sampling_finds(gae_lambda):
    rng = np.random.default_rng(2)
    mdp = worlds.random_mdp(rng, states=4, actions=2, gamma=0.8, terminal=1)
    policy, critic = worlds.random_policy(rng, mdp), rng.normal(size=4)
    mean, variance = estimators.gae_moments(mdp, policy, critic, gae_lambda)
    number = 20_000
    for state, action in ((0, 0), (2, 1)):
        first = (np.full(number, state), np.full(number, action))
        paths = sampling.sample(rng, mdp, policy, trajectories=number, steps=80, first=first)
        found = sampling.gae(mdp, paths, critic, gae_lambda)[:, 0]
        assert abs(found.mean() - mean[state, action]) < 5.0 * found.std() / np.sqrt(number)
        spread = ((found - found.mean()) ** 2).std() / np.sqrt(number)
        assert abs(found.var() - variance[state, action]) < 5.0 * spread


@pytest.mark.parametrize(("mdp", "old", "new"), cases()[4:])
def test_gae_is_unbiased_with_the_exact_critic_or_with_lambda_one(mdp, old, new):
    value, weight = exact.state_value(mdp, old), exact.visitation(mdp, old)
    scale = np.abs(value).max(-1)
    for gae_lambda in (0.0, 0.5, 1.0):
        mean, _ = estimators.gae_moments(mdp, old, value, gae_lambda)
        assert close(mean, exact.advantage(mdp, old), scale[:, None, None])
    rng = np.random.default_rng(0)
    wrong = value + rng.normal(size=value.shape)
    bias, variance = estimators.gae_errors(mdp, old, wrong, 1.0, weight)
    assert np.all(bias <= 1e-18 * (1.0 + scale) ** 2)  # of the gradient's kind: a state's own shift is a baseline
    mean, _ = estimators.gae_moments(mdp, old, wrong, 1.0)
    shift = (value - wrong)[:, :, None] * mdp.live[:, None]
    assert close(mean, exact.advantage(mdp, old) + shift, 1.0 + scale[:, None, None])
    assert np.all(variance >= 0.0)


def test_variance_grows_with_lambda_and_bias_falls_in_the_median():
    rng = np.random.default_rng(4)
    mdp = worlds.random_mdp(rng, batch=(300,), gamma=0.95, branching=2)
    policy = worlds.random_policy(rng, mdp)
    critic = exact.state_value(mdp, policy) + rng.normal(size=(300, 6))
    weight = exact.visitation(mdp, policy)
    errors = [estimators.gae_errors(mdp, policy, critic, x, weight) for x in (0.0, 0.5, 0.9, 1.0)]
    bias, variance = (np.median(np.array(column), axis=1) for column in zip(*errors, strict=True))
    assert np.all(np.diff(bias) < 0.0)
    assert np.all(np.diff(variance[1:]) > 0.0)  # from 0 to ½ the critic's own noise may average out
