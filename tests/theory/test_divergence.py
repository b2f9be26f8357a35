"""Total variation, KL, and the lower bound on η: no exception on thousands of MDPs, and how loose it is, in numbers."""

import numpy as np
import pytest

from surefoot.theory import divergence, exact, worlds
from tests.theory.worlds_for_tests import cases, close


def test_divergences_by_hand():
    p, q = np.array([0.5, 0.5]), np.array([0.75, 0.25])
    assert divergence.total_variation(p, q) == 0.25
    assert divergence.kl(p, q) == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25), rel=1e-14)
    assert divergence.kl(np.array([1.0, 0.0]), q) == pytest.approx(np.log(4 / 3), rel=1e-14)
    assert divergence.kl(q, np.array([1.0, 0.0])) == np.inf
    assert divergence.kl(p, p) == 0.0


def test_kl_keeps_its_digits_where_policies_nearly_agree():
    p, step = np.array([0.2, 0.3, 0.5]), np.array([1.0, 1.0, -2.0])
    for size in (1e-3, 1e-5, 1e-7):
        series = (p * ((size * step / p) ** 2 / 2 - (size * step / p) ** 3 / 3 + (size * step / p) ** 4 / 4)).sum()
        assert divergence.kl(p, p + size * step) == pytest.approx(series, rel=1e-8)


@pytest.mark.parametrize(("mdp", "old", "new"), cases())
def test_every_inequality_holds_without_exception(mdp, old, new):
    distance, far = divergence.kl(old, new), divergence.total_variation(old, new)
    assert np.all(distance >= 0.0)
    assert np.all(far**2 <= distance / 2 + 1e-10)  # Pinsker, twice as sharp as the lecture's D_TV² ≤ D_KL
    assert close(divergence.max_kl(mdp, old, new), distance[:, mdp.live].max(-1))
    assert np.all(divergence.mean_kl(mdp, old, new) <= divergence.max_kl(mdp, old, new) * (1 + 1e-10))
    eta = exact.expected_return(mdp, new)
    slack = 1e-10 * np.maximum(1.0, np.abs(exact.state_value(mdp, new)).max(-1))
    by_variation, by_kl = divergence.total_variation_bound(mdp, old, new), divergence.lower_bound(mdp, old, new)
    assert np.all(by_kl <= by_variation + slack)
    assert np.all(by_variation <= eta + slack)
    if mdp.gamma == 0.0:
        assert close(by_kl, eta)  # no state follows another: the surrogate is exact and C is 0


def test_a_wrong_constant_is_caught():
    """Without the 4/(1−γ)² the "bound" is broken by some of these MDPs: the test above has teeth."""
    broken = 0
    for mdp, old, new in cases():
        weak = divergence.bound_constant(mdp, old) * (1.0 - mdp.gamma) ** 2 / 4.0
        far = divergence.max_total_variation(mdp, old, new)
        eta = exact.expected_return(mdp, new)
        broken += int((exact.surrogate(mdp, old, new) - weak * far**2 > eta + 1e-6).sum())
    assert broken > 50


def test_the_bound_is_loose_by_a_known_factor():
    """What the bound sets aside over what it would need, |η − L|, in the median over a thousand MDPs."""
    rng = np.random.default_rng(3)
    factors = {}
    for gamma in (0.5, 0.9, 0.99):
        mdp = worlds.random_mdp(rng, gamma=gamma, batch=(1000,))
        theta = worlds.random_parameters(rng, mdp)
        old, new = mdp.policy(theta), mdp.policy(theta + 0.1 * rng.normal(size=theta.shape))
        gap = np.abs(exact.expected_return(mdp, new) - exact.surrogate(mdp, old, new))
        price = divergence.bound_constant(mdp, old) * divergence.max_kl(mdp, old, new)
        factors[gamma] = float(np.median(price / gap))
    assert 100 < factors[0.5] < 1000, factors
    assert 2_000 < factors[0.9] < 20_000, factors
    assert 20_000 < factors[0.99] < 500_000, factors
