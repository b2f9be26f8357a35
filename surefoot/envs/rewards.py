"""Reward normalisation by the spread of the discounted return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.math.moments import RunningMoments

if TYPE_CHECKING:
    from surefoot.types import Array

CLIP = 10.0


class RewardNormalizer:
    """r ↦ clip(r / √(Var(G) + 1e-8), ±10), G_t = γ·G_{t−1} + r_t running along each env's episode.

    The mean is not subtracted: that would change which episodes are worth living. G starts anew at every episode
    and does not move on invalid steps. One set of statistics serves all envs.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma, self.moments = gamma, RunningMoments()
        self.running = np.zeros(num_envs)  # G of each open episode

    def observe(self, reward: Array, done: Array, valid: Array) -> None:
        """Take in a rollout, all `[T, N]`, in time order."""
        seen = np.zeros_like(reward)
        for t in range(len(reward)):
            self.running = np.where(valid[t], self.gamma * self.running + reward[t], self.running)
            seen[t] = self.running
            self.running = np.where(done[t], 0.0, self.running)
        self.moments.merge(seen[valid])

    def scale(self, reward: Array) -> Array:
        return np.clip(reward / np.sqrt(self.moments.var + 1e-8), -CLIP, CLIP)

    def restart(self) -> None:
        """All episodes were cut short (every env was reset)."""
        self.running[:] = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {**self.moments.state_dict(), "running": self.running.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self.running = np.asarray(state["running"], np.float64).copy()
