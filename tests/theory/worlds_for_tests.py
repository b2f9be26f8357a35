"""Thousands of MDPs with pairs of policies, drawn once: dense and sparse, ending and endless, γ from 0 to 0.99."""

from functools import cache

import numpy as np

from surefoot.theory import worlds

GAMMAS = (0.0, 0.1, 0.5, 0.9, 0.99)
KINDS = (  # states, actions, branching, terminal
    (2, 2, None, 0),
    (5, 3, 2, 1),
    (6, 4, None, 2),
    (12, 2, 3, 0),
)
PER_KIND = 150  # 5 · 4 · 150 = 3000 MDPs


@cache
def cases():
    """[(mdp, old, new)], each a batch; new policies from nearly the old one to unrelated, some nearly deterministic."""
    rng = np.random.default_rng(7)
    found = []
    for gamma in GAMMAS:
        for states, actions, branching, terminal in KINDS:
            shape = {"states": states, "actions": actions, "branching": branching, "terminal": terminal}
            mdp = worlds.random_mdp(rng, gamma=gamma, batch=(PER_KIND,), **shape)
            theta = worlds.random_parameters(rng, mdp, 2.0)
            distance = 10.0 ** rng.uniform(-4.0, 1.0, size=(PER_KIND, 1, 1))
            found.append((mdp, mdp.policy(theta), mdp.policy(theta + distance * rng.normal(size=theta.shape))))
    return found


def close(found, expected, scale=None, tolerance=1e-10):
    """Equal to `tolerance`, relative to the size of what is compared, or to `scale` where it is a difference."""
    size = np.maximum(np.abs(expected), 0.0 if scale is None else scale)
    return np.all(np.abs(found - expected) <= tolerance * np.maximum(size, 1e-3))
