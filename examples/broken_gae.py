"""GAE from a single-file script, with a common mistake: `surefoot conformance examples/broken_gae.py` finds it."""

import numpy as np


def gae(rewards, values, next_values, dones, gamma, lam):
    advantages = np.zeros_like(rewards)
    last = 0.0
    for t in reversed(range(len(rewards))):
        not_done = 1.0 - dones[t]
        delta = rewards[t] + gamma * next_values[t] * not_done - values[t]
        last = delta + gamma * lam * not_done * last
        advantages[t] = last
    return advantages


# The adapter: what the script's function computes for the suite's numbers.
def advantages(reward, value, next_value, terminated, truncated, *, gamma, gae_lambda):
    return gae(reward, value, next_value, terminated | truncated, gamma, gae_lambda)
