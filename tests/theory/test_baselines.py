"""The variance of the policy gradient: a bandit by hand, thousands of samples, and baselines that change no mean."""

import json

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.theory import exact, gradients, sampling, worlds
from surefoot.theory.baselines import gradient_moments, least_variance
from surefoot.theory.mdp import MDP


def bandit(rewards, probabilities, gamma=0.9):
    """One decision, then the end."""
    actions = len(rewards)
    transition = np.zeros((2, actions, 2))
    transition[:, :, 1] = 1.0
    reward = np.zeros_like(transition)
    reward[0, :, 1] = rewards
    mdp = MDP(
        transition=transition,
        reward=reward,
        start=np.array([1.0, 0.0]),
        gamma=gamma,
        terminal=np.array([False, True]),
    )
    return mdp, np.array([probabilities, probabilities])


@pytest.mark.parametrize("b", [0.0, 1.0, 2.5, -4.0])
def test_two_arms_by_hand(b):
    """π = (p, q), ∇log π(1) = (q, −q), ∇log π(2) = (−p, p), so the squared norms are 2q² and 2p²."""
    p, q = 0.3, 0.7
    mdp, policy = bandit([1.0, 3.0], [p, q])
    mean, variance = gradient_moments(mdp, policy, np.array([b, 0.0]))
    gradient = p * q * (1.0 - 3.0)  # of arm 1: p·q·(r₁ − r₂)
    assert np.allclose(mean[0], [gradient, -gradient])
    second = p * 2 * q**2 * (1.0 - b) ** 2 + q * 2 * p**2 * (3.0 - b) ** 2
    assert variance == pytest.approx(second - 2 * gradient**2)


def test_the_best_baseline_of_two_arms_removes_all_variance():
    """With two arms, b = q·r₁ + p·r₂ makes both arms' gradients equal."""
    mdp, policy = bandit([1.0, 3.0], [0.3, 0.7])
    best = least_variance(mdp, policy)
    assert best[0] == pytest.approx(0.7 * 1.0 + 0.3 * 3.0)
    assert gradient_moments(mdp, policy, best)[1] == pytest.approx(0.0, abs=1e-12)


def test_no_baseline_beats_the_best_one_of_a_bandit():
    mdp, policy = bandit([1.0, 3.0, -2.0], [0.2, 0.5, 0.3])
    least = gradient_moments(mdp, policy, least_variance(mdp, policy))[1]
    for b in np.linspace(-5.0, 5.0, 41):
        assert gradient_moments(mdp, policy, np.array([b, 0.0]))[1] >= least - 1e-12


@pytest.mark.parametrize("terminal", [0, 2])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_the_mean_is_the_exact_gradient_whatever_the_baseline(terminal, gamma):
    rng = np.random.default_rng(5)
    mdp = worlds.random_mdp(rng, states=6, actions=3, gamma=gamma, terminal=terminal)
    theta = worlds.random_parameters(rng, mdp)
    truth = gradients.policy_gradient(mdp, theta)
    for _ in range(5):
        mean, _ = gradient_moments(mdp, mdp.policy(theta), rng.normal(size=6))
        assert np.allclose(mean, truth, atol=1e-12)


@pytest.mark.parametrize("kind", ["endless", "ending", "cliff"])
def test_samples_agree_with_the_exact_variance(kind):
    """The cliff's walker is blind: its states share one pair of parameters."""
    rng = np.random.default_rng(2)
    if kind == "cliff":
        mdp, theta = worlds.cliff(4, gamma=0.5), np.array([[0.0, 0.3]])
    else:
        mdp = worlds.random_mdp(rng, states=4, actions=3, gamma=0.5, terminal=1 if kind == "ending" else 0)
        theta = worlds.random_parameters(rng, mdp)
    policy = mdp.policy(theta)
    paths = sampling.sample(rng, mdp, policy, trajectories=20_000, steps=30)
    for b in (np.zeros(mdp.num_states), exact.state_value(mdp, policy)):
        squares = ((sampling.policy_gradients(mdp, paths, policy, b) - gradients.policy_gradient(mdp, theta)) ** 2).sum(
            (1, 2)
        )
        error = squares.std() / np.sqrt(len(squares))
        assert abs(squares.mean() - gradient_moments(mdp, policy, b)[1]) < 4.0 * error


def test_an_offset_of_the_rewards_costs_only_those_without_a_baseline(capsys):
    assert main(["theory", "baseline", "--trajectories", "50", "--json", "--out", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    with_value, without = (np.array(found["offsets"][name]) for name in ("with_value", "without"))
    assert np.allclose(with_value, with_value[0])
    assert without.max() > 100.0 * with_value[0]
    variances = {row["baseline"].split(":")[0]: row["variance"] for row in found["estimators"]}
    assert variances["V(s)"] < variances["V(s) + error"] < variances["none"]
    assert all(row["bias"] < 1e-12 for row in found["estimators"])
