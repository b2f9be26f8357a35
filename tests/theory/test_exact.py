"""V, Q, A, ρ, η and the performance-difference identity: by hand on two states, then on thousands of MDPs."""

import numpy as np
import pytest

from surefoot.errors import UsageError
from surefoot.theory import exact, sampling, worlds
from surefoot.theory.mdp import MDP, softmax
from tests.theory.worlds_for_tests import cases, close


def two_states():
    """From 0 `stay` pays 1 and stays, `leave` pays 0 and leads to 1; from 1 everything pays 2 and ends. γ = ½."""
    transition = np.array([[[1, 0, 0], [0, 1, 0]], [[0, 0, 1]] * 2, [[0, 0, 1]] * 2], float)
    reward = np.zeros((3, 2, 3))
    reward[0, 0, 0], reward[1, :, 2] = 1.0, 2.0
    return MDP(
        transition=transition, reward=reward, start=np.array([1.0, 0, 0]), gamma=0.5, terminal=np.array([0, 0, 1], bool)
    )


def test_two_states_by_hand():
    mdp, half = two_states(), np.full((3, 2), 0.5)
    # V(0) = ½(1 + ½V(0)) + ½·½·V(1), V(1) = 2  ⇒  ¾V(0) = 1
    np.testing.assert_allclose(exact.state_value(mdp, half), [4 / 3, 2.0, 0.0], rtol=1e-14)
    np.testing.assert_allclose(exact.action_value(mdp, half), [[5 / 3, 1.0], [2, 2], [0, 0]], rtol=1e-14)
    np.testing.assert_allclose(exact.advantage(mdp, half), [[1 / 3, -1 / 3], [0, 0], [0, 0]], atol=1e-15)
    # ρ(0) = 1/(1 − ½·½), ρ(1) = ½·½·ρ(0); nobody acts in the end
    np.testing.assert_allclose(exact.visitation(mdp, half), [4 / 3, 1 / 3, 0.0], rtol=1e-14)
    assert exact.expected_return(mdp, half) == pytest.approx(4 / 3, rel=1e-14)
    stay = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    # η(stay) = 1/(1−½) = 2; the identity gives the 2/3 as ρ_stay(0)·A(0, stay) = 2·⅓
    assert exact.performance_difference(mdp, half, stay) == pytest.approx(2 / 3, rel=1e-14)
    # with the old visitation only 4/3·⅓
    assert exact.surrogate(mdp, half, stay) == pytest.approx(4 / 3 + 4 / 9, rel=1e-14)
    # three steps, undiscounted: half stays 1 + …, by the tree: E = ½·1 + (next)
    assert exact.episode_return(mdp, half, 1) == pytest.approx(0.5)
    assert exact.episode_return(mdp, half, 2) == pytest.approx(0.5 + 0.5 * 0.5 + 0.5 * 2)


@pytest.mark.parametrize(("mdp", "old", "new"), cases())
def test_the_identities_hold_on_every_mdp(mdp, old, new):
    value, q, gain = exact.state_value(mdp, old), exact.action_value(mdp, old), exact.advantage(mdp, old)
    scale = np.abs(value).max(-1)
    assert close((old * q).sum(-1), value, scale[:, None])  # V = E_π Q
    assert close((old * gain).sum(-1), 0.0, scale[:, None])  # E_π A = 0
    assert np.all(value[:, mdp.terminal] == 0.0)
    rho = exact.visitation(mdp, old)
    flow = mdp.start + mdp.gamma * np.einsum("bs,bsa,bsat->bt", rho, old, mdp.onward)
    assert close(rho, flow)  # what comes in: μ + γPᵀρ
    assert np.all(rho >= -1e-12)
    if not mdp.terminal.any():
        assert close(rho.sum(-1), 1.0 / (1.0 - mdp.gamma))
    eta = exact.expected_return(mdp, old)
    assert close((rho * (old * mdp.expected_reward).sum(-1)).sum(-1), eta, scale)  # η = Σρ·r, as well as Σμ·V
    difference = exact.expected_return(mdp, new) - eta
    larger = np.maximum(scale, np.abs(exact.state_value(mdp, new)).max(-1))
    assert close(exact.performance_difference(mdp, old, new), difference, larger)
    assert close(exact.performance_difference(mdp, old, old), 0.0, scale)
    assert close(exact.surrogate(mdp, old, old), eta, scale)  # L_π(π) = η(π)


def test_a_batch_gives_what_its_members_give():
    mdp, old, new = cases()[5]
    for function in (exact.performance_difference, exact.surrogate):
        together = function(mdp, old, new)
        apart = [function(mdp[i], old[i], new[i]) for i in range(5)]
        np.testing.assert_allclose(together[:5], apart, rtol=1e-12)


def test_a_long_episode_without_end_has_the_return_of_its_rewards():
    mdp = worlds.chain(4)
    policy = mdp.uniform()
    slow = sum(
        (
            mdp.start @ np.linalg.matrix_power(exact.chain_of(mdp, policy), t) * (policy * mdp.expected_reward).sum(-1)
        ).sum()
        for t in range(30)
    )
    assert exact.episode_return(mdp, policy, 30) == pytest.approx(slow, rel=1e-12)


@pytest.mark.parametrize(
    "mdp", [worlds.chain(5), worlds.gridworld(4), worlds.cliff(), worlds.cliff(blind=False), worlds.ledge()]
)
def test_the_worlds_are_mdps_that_can_be_walked(mdp):
    np.testing.assert_allclose(mdp.transition[mdp.live].sum(-1), 1.0)
    paths = sampling.sample(np.random.default_rng(0), mdp, mdp.uniform(), trajectories=200, steps=200)
    assert set(np.unique(paths.state[paths.alive])) == set(np.flatnonzero(mdp.live))
    assert len(mdp.actions) == mdp.num_actions


def test_the_cliff_has_a_summit_and_a_fall():
    mdp = worlds.cliff()
    odds = np.linspace(-6, 8, 200)
    height = exact.expected_return(mdp, mdp.policy(np.stack([0 * odds, odds], -1)[:, None]))
    top = int(height.argmax())
    assert 2.0 < height[top] < 2.2
    assert np.all(np.diff(height[: top + 1]) > 0.0)
    assert np.all(np.diff(height[top:]) < 0.0)
    assert height[-1] < -4.0


def test_softmax_of_huge_logits():
    np.testing.assert_array_equal(softmax(np.array([1e4, 0.0, -1e4])), [1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.0}, "gamma=1 must be in"),
        ({"transition": np.full((3, 2, 3), 0.5)}, "must be a distribution"),
        ({"start": np.array([0.5, 0.0, 0.0])}, "start must be a distribution"),
        ({"start": np.array([0.0, 0.0, 1.0])}, "cannot begin in a terminal state"),
    ],
)
def test_what_is_no_mdp_is_refused(change, message):
    mdp = two_states()
    parts = {name: getattr(mdp, name) for name in ("transition", "reward", "start", "gamma", "terminal")}
    with pytest.raises(UsageError, match=message):
        MDP(**parts | change)


@pytest.mark.parametrize("make", [lambda: worlds.cliff(1), lambda: worlds.chain(1), lambda: worlds.gridworld(2)])
def test_worlds_that_are_too_small_are_refused(make):
    with pytest.raises(UsageError, match="too small"):
        make()
    with pytest.raises(UsageError, match="needs a state"):
        worlds.random_mdp(np.random.default_rng(0), states=1, terminal=1)
