"""Reward normalisation by the spread of the discounted return."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from surefoot.math.moments import MomentsState, RunningMoments
from surefoot.math.operations import OPERATIONS
from surefoot.schema import ArrayOf, Either, Number, Record, Shape

if TYPE_CHECKING:
    from surefoot.math.operations import Operations
    from surefoot.types import Array

CLIP = 10.0


class RewardState(MomentsState):
    running: Array  # discounted return so far, per env


def reward_shape(num_envs: int) -> Shape:
    """The shape of a `RewardState`."""
    # Earlier versions saved an array of one number if a run was stopped right after a resume.
    count, mean, var = (
        Either((Number(low), ArrayOf((), "float64", low), ArrayOf((1,), "float64", low)))
        for low in (0.0, -math.inf, 0.0)
    )
    return Record(count=count, mean=mean, var=var, running=ArrayOf((num_envs,), "float64"))


class RewardNormalizer:
    """r ↦ clip(r / √(Var(G) + 1e-8), ±10), G_t = γ·G_{t−1} + r_t running along each env's episode.

    The mean is not subtracted: that would change whether long episodes are better than short ones. G restarts at every
    episode and skips invalid steps. All envs share one set of statistics.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma, self.moments = gamma, RunningMoments()
        self.running = np.zeros(num_envs)  # G of each open episode

    def observe(self, reward: Array, done: Array, valid: Array, operations: Operations = OPERATIONS) -> None:
        """Update the statistics from a rollout, all `[T, N]`, in time order."""
        seen, self.running = operations.running_returns(reward, done, valid, self.gamma, self.running)
        self.moments.merge(seen[valid], combine=operations.combined)

    def scale(self, reward: Array) -> Array:
        return np.clip(reward / np.sqrt(self.moments.var + 1e-8), -CLIP, CLIP)

    def restart(self) -> None:
        """All episodes were cut short (every env was reset)."""
        self.running[:] = 0.0

    def forget(self, index: int) -> None:
        """Drop the open episode of one env."""
        self.running[index] = 0.0

    def state_dict(self) -> RewardState:
        return {**self.moments.state_dict(), "running": self.running.copy()}

    def state_shape(self) -> Shape:
        return reward_shape(len(self.running))

    def load_state_dict(self, state: RewardState) -> None:
        self.moments.load_state_dict(state)
        self.running = np.asarray(state["running"], np.float64).copy()
