"""Operations over a rollout, in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.kernels import scan
from surefoot.math.operations import Operations

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array, Rollout


class CompiledOperations(Operations):
    """Equal to the readable versions, up to rounding."""

    def reverse_scan(self, x: Tensor, decay: Tensor) -> Tensor:
        return scan.reverse_scan(x, decay)

    def advantages(
        self, rollout: Rollout, gamma: float, gae_lambda: float, value_lambda: float, segment_length: int | None
    ) -> tuple[Tensor, Tensor]:
        return scan.advantages(rollout, gamma, gae_lambda, value_lambda, segment_length)

    def running_returns(
        self, reward: Array, done: Array, valid: Array, gamma: float, running: Array
    ) -> tuple[Array, Array]:
        return scan.running_returns(reward, done, valid, gamma, running)

    def moments(self, rows: Array) -> tuple[Array, Array]:
        return scan.moments(rows)
