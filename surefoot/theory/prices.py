"""β finding its price: PPO-penalty's feedback rule, with every update solved exactly.

A penalty β on the mean KL has one maximiser among all tables (penalty.py), and its KL falls as β grows. So one β gives
a KL of exactly δ: the multiplier of TRPO's constraint, the price of the trust region. The rule of PPO-penalty knows
neither the curve nor the price; it doubles and halves. For small steps the KL is proportional to 1/β², so doubling β
divides it by 4, but the band in which β stays, δ/1.5 to 1.5δ, is only a factor of 2.25 wide: some β jump over it
forever, from one side of the price to the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.algorithms.ppo_penalty import adapted_kl_coef
from surefoot.theory import exact, gradients
from surefoot.theory.divergence import mean_kl
from surefoot.theory.penalty import maximise_mean_penalty

if TYPE_CHECKING:
    from surefoot.theory import results
    from surefoot.theory.config import PenaltyConfig
    from surefoot.theory.mdp import MDP
    from surefoot.types import Array

LOWEST = 1e-12  # the price where nothing can be gained
ROUNDS, CLOSE = 50, 1e-10  # secant steps at most; the error in log KL


def price_of(mdp: MDP, policy: Array, target_kl: float) -> float:
    """The β whose maximiser has a mean KL of δ: log KL against log β is nearly a line, so secants find it quickly."""
    at = np.log(max(small_step_price(mdp, policy, target_kl), LOWEST))
    before: tuple[float, float] | None = None
    for _ in range(ROUNDS):
        distance = kl_at(mdp, policy, float(np.exp(at)))
        if distance <= 0.0:  # nothing left to gain
            break
        error = float(np.log(distance / target_kl))
        if abs(error) < CLOSE:
            break
        tilt = -2.0 if before is None or at == before[0] else (error - before[1]) / (at - before[0])
        before, at = (float(at), error), at - np.clip(error / min(tilt, -1e-2), -5.0, 5.0)
    return float(np.exp(at))


def small_step_price(mdp: MDP, policy: Array, target_kl: float) -> float:
    """√(E_s Var_a[A] / 2δ): the price in the limit of small steps, where KL = E_s Var_a[A] / 2β²."""
    gain = exact.advantage(mdp, policy)
    spread = (gradients.weights(mdp, policy)[:, None] * policy * gain**2).sum()
    return float(np.sqrt(spread / (2.0 * target_kl)))


def kl_at(mdp: MDP, policy: Array, kl_coef: float) -> float:
    """The mean KL of the best step at the price β."""
    return float(mean_kl(mdp, policy, maximise_mean_penalty(mdp, policy, kl_coef)))


def follow(mdp: MDP, policy: Array, *, start: float, target_kl: float, updates: int) -> results.Feedback:
    """β by the rule, for updates that all start from the same policy."""
    beta = start
    coefs: list[float] = []
    kls: list[float] = []
    for _ in range(updates):
        coefs.append(beta)
        kls.append(kl_at(mdp, policy, beta))
        beta = adapted_kl_coef(beta, kls[-1], target_kl)
    price = price_of(mdp, policy, target_kl)
    near = [k for k, own in enumerate(coefs) if 0.5 <= own / price <= 2.0]
    return {
        "start": start,
        "kl_coef": coefs,
        "kl": kls,
        "found_after": near[0] if near else None,
        "settled": beta == coefs[-1],
        "alternates": beta != coefs[-1] and [beta] == coefs[-2:-1],
    }


def penalty(config: PenaltyConfig, world: tuple[MDP, Array]) -> results.Penalty:
    """The KL against β with the price of δ, and the rule on its way there from several β."""
    mdp, theta = world
    old = mdp.policy(theta)
    price = price_of(mdp, old, config.target_kl)
    grid = price * np.geomspace(1e-2, 1e2, 121)
    return {
        "gamma": mdp.gamma,
        "target_kl": config.target_kl,
        "price": price,
        "small_step_price": small_step_price(mdp, old, config.target_kl),
        "curve": {"kl_coef": grid.tolist(), "kl": [kl_at(mdp, old, float(beta)) for beta in grid]},
        "runs": [
            follow(mdp, old, start=beta, target_kl=config.target_kl, updates=config.updates) for beta in config.kl_coefs
        ],
    }
