"""The computations over a rollout, in one object, so that an engine can replace them by compiled versions."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Self

from surefoot.math.returns import gae, reverse_scan, reward_to_go, td_error

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array, Rollout


class Operations:
    """The readable versions. A subclass computes the same, up to rounding."""

    sum_: Callable[[Tensor], Tensor] | None = None  # replaces numbers by their sums over all processes of the run

    def over_all(self, sum_: Callable[[Tensor], Tensor]) -> Self:
        """The same with statistics over all processes of a run."""
        shared = copy(self)
        shared.sum_ = sum_
        return shared

    def standardize(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """(x − mean) / (std + 1e-8) over all samples `[B]`; see `math.statistics`."""
        from surefoot.math.statistics import standardize

        return standardize(x, weight, self.sum_)

    def combined(self, size: float, mean: Array, var: Array) -> tuple[float, Array, Array]:
        """Number, mean and variance of all processes' rows, from this one's."""
        if self.sum_ is None:
            return size, mean, var
        from surefoot.math.moments import combined

        return combined(size, mean, var, self.sum_)

    def reverse_scan(self, x: Tensor, decay: Tensor) -> Tensor:
        """y_t = x_t + decay_t · y_{t+1}, backwards over time with y_T = 0. All `[T, N]`."""
        return reverse_scan(x, decay)

    def reward_to_go(self, reward: Tensor, done: Tensor, gamma: float) -> Tensor:
        """R_t = r_t + γ · ¬done_t · R_{t+1}. All `[T, N]`."""
        return reward_to_go(reward, done, gamma, self.reverse_scan)

    def advantages(
        self, rollout: Rollout, gamma: float, gae_lambda: float, value_lambda: float, segment_length: int | None
    ) -> tuple[Tensor, Tensor]:
        """(GAE(λ), V + GAE(value_lambda): the critic's targets), both `[T, N]`."""
        delta = td_error(rollout.reward, rollout.value, rollout.next_value, rollout.terminated, gamma)
        delta = delta.masked_fill(~rollout.valid, 0.0)  # an invalid step must not affect those before it
        advantage = correction = gae(delta, rollout.done, gamma, gae_lambda, segment_length)
        if value_lambda != gae_lambda:
            correction = gae(delta, rollout.done, gamma, value_lambda, segment_length)
        return advantage, rollout.value + correction

    def running_returns(
        self, reward: Array, done: Array, valid: Array, gamma: float, running: Array
    ) -> tuple[Array, Array]:
        """(G_t = γ·G_{t−1} + r_t of every step `[T, N]`, G after the last `[N]`)."""
        from surefoot.math.moments import running_returns  # here, because reading a config must not import NumPy

        return running_returns(reward, done, valid, gamma, running)

    def running_returns_on_device(
        self, reward: Tensor, done: Tensor, valid: Tensor, gamma: float, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`running_returns` in tensors."""
        from surefoot.math.device_moments import running_returns

        return running_returns(reward, done, valid, gamma, running)

    def moments(self, rows: Array) -> tuple[Array, Array]:
        """(mean, population variance) over the first axis, in float64."""
        from surefoot.math.moments import moments

        return moments(rows)


OPERATIONS = Operations()
