"""The numbers in docs/theory.md that take too long for a test: how loose the bound is, and how slowly it climbs.

    python benchmarks/theory.py

looseness: C·D_KL^max over |η − L|, the error it covers; median over 1000 random MDPs and small random steps.
climb: the policy that maximises the bound, again and again from the uniform one, on 20 random MDPs, until no policy is
guaranteed more than 1e-8; every single step's true gain is checked, and the smallest is reported. Policy iteration
needs a handful of steps for the same MDPs.

mean_kl: of a million ledges (`worlds.ledge` with other odds p → p' at the fork and b → b' on the ledge), those on which
the mean KL can mislead: η − L, which is −γ(p'−p)(b'−b), is larger than the price C·D̄_KL.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from surefoot.theory import divergence, exact, worlds
from surefoot.theory.penalty import maximise_bound

RESULTS = Path(__file__).parent / "results" / "theory.json"


def looseness(gamma: float, rng: np.random.Generator) -> float:
    mdp = worlds.random_mdp(rng, gamma=gamma, batch=(1000,))
    theta = worlds.random_parameters(rng, mdp)
    old, new = mdp.policy(theta), mdp.policy(theta + 0.1 * rng.normal(size=theta.shape))
    gap = np.abs(exact.expected_return(mdp, new) - exact.surrogate(mdp, old, new))
    return float(np.median(divergence.bound_constant(mdp, old) * divergence.max_kl(mdp, old, new) / gap))


def climb(gamma: float, most: int = 50_000) -> dict[str, float]:
    mdp = worlds.random_mdp(np.random.default_rng(1), batch=(20,), gamma=gamma, states=4)
    policy = mdp.uniform()
    eta = exact.expected_return(mdp, policy)
    steps, smallest = np.zeros(20, int), np.inf
    going = np.ones(20, bool)
    for _ in range(most):
        new = maximise_bound(mdp, policy)
        after = exact.expected_return(mdp, new)
        going &= divergence.lower_bound(mdp, policy, new) - eta > 1e-8
        if not going.any():
            break
        steps += going
        smallest = min(smallest, float((after - eta)[going].min()))
        policy, eta = new, after
    best = mdp.uniform()
    for _ in range(50):
        best = np.eye(mdp.num_actions)[exact.action_value(mdp, best).argmax(-1)]
    return {
        "gamma": gamma,
        "converged_of_20": int((~going).sum()),
        "median_steps": float(np.median(steps)),
        "all_steps": int(steps.sum()),
        "smallest_gain": smallest,
        "largest_shortfall": float((exact.expected_return(mdp, best) - eta).max()),
    }


def misled(gamma: float, draws: int = 1_000_000) -> int:
    p, q, b, c = 1.0 / (1.0 + np.exp(-np.random.default_rng(0).uniform(-6.0, 6.0, (4, draws))))
    far = (np.abs(q - p) > 1e-4) & (np.abs(c - b) > 1e-4)  # otherwise both sides are mostly rounding errors

    def kl(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return divergence.kl(np.stack([x, 1.0 - x], -1), np.stack([y, 1.0 - y], -1))

    mean = (kl(p, q) + gamma * p * kl(b, c)) / (1.0 + gamma * p)
    price = 4.0 * np.maximum(b, 1.0 - b) * gamma / (1.0 - gamma) ** 2 * mean
    return int((far & (gamma * (q - p) * (c - b) > price)).sum())


def main() -> None:
    rng = np.random.default_rng(3)
    found = {
        "looseness": {str(gamma): looseness(gamma, rng) for gamma in (0.5, 0.9, 0.99)},
        "mean_kl": {str(gamma): misled(gamma) for gamma in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)},
        "climb": [climb(gamma) for gamma in (0.1, 0.5, 0.9)],
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
