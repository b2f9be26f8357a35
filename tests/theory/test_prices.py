"""The price of a trust region, and PPO-penalty's β on the way to it."""

import json

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.theory import worlds
from surefoot.theory.prices import follow, kl_at, price_of, small_step_price


def world(seed=0, **shape):
    rng = np.random.default_rng(seed)
    mdp = worlds.random_mdp(rng, states=5, actions=3, gamma=0.8, **shape)
    return mdp, worlds.random_policy(rng, mdp)


@pytest.mark.parametrize("target_kl", [1e-4, 0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_at_its_price_an_update_has_the_kl_that_was_wanted(seed, target_kl):
    mdp, policy = world(seed)
    price = price_of(mdp, policy, target_kl)
    assert kl_at(mdp, policy, price) == pytest.approx(target_kl, rel=1e-6)
    assert kl_at(mdp, policy, 2.0 * price) < target_kl < kl_at(mdp, policy, 0.5 * price)


def test_for_small_steps_the_price_has_a_closed_form():
    """KL ≈ E_s Var_a[A] / 2β², so β = √(E_s Var_a[A] / 2δ); the error falls with the step, √δ."""
    mdp, policy = world(1)
    errors = [abs(price_of(mdp, policy, d) / small_step_price(mdp, policy, d) - 1.0) for d in (1e-2, 1e-4, 1e-6)]
    assert errors[2] < 1e-3
    assert errors[1] == pytest.approx(errors[0] / 10.0, rel=0.3)
    assert errors[2] == pytest.approx(errors[1] / 10.0, rel=0.3)


@pytest.mark.parametrize("start", [1e-3, 0.3, 1.0, 50.0, 1e4])
def test_the_rule_ends_within_a_factor_of_two_of_the_price(start):
    mdp, policy = world(2)
    price = price_of(mdp, policy, 0.001)
    run = follow(mdp, policy, start=start, target_kl=0.001, updates=40)
    assert all(0.5 <= beta / price <= 2.0 for beta in run["kl_coef"][-4:])
    distance = abs(np.log2(price / start))
    assert distance - 1.0 <= run["found_after"] <= distance + 1.0  # one doubling or halving at a time


def test_beta_stays_in_the_band_and_jumps_over_it_from_outside():
    """Doubling divides the KL by 4; the band is a factor of 2.25 wide. From KL 2δ it goes to δ/2 and back."""
    mdp, policy = world(2)
    price = price_of(mdp, policy, 1e-6)
    inside = follow(mdp, policy, start=price, target_kl=1e-6, updates=6)
    assert inside["settled"]
    assert set(inside["kl_coef"]) == {price}
    outside = follow(mdp, policy, start=price / np.sqrt(2.0), target_kl=1e-6, updates=6)
    assert outside["alternates"]
    assert not outside["settled"]
    assert outside["kl_coef"] == pytest.approx([price / np.sqrt(2.0), price * np.sqrt(2.0)] * 3)


def test_the_command_tells_which_beta_stay(capsys):
    assert main(["theory", "penalty", "--updates", "16", "--kl-coefs", "0.1", "20", "--json", "--out", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["start"] for run in found["runs"]] == [0.1, 20.0]
    assert all(run["found_after"] is not None for run in found["runs"])
    assert main(["theory", "penalty", "--kl-coefs"]) == 2
    assert "one to five values of β" in capsys.readouterr().err
