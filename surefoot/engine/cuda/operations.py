"""Operations over a rollout in a few large steps instead of one per time step."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surefoot.math.operations import Operations
from surefoot.math.returns import td_error

if TYPE_CHECKING:
    from surefoot.types import Rollout


class DeviceOperations(Operations):
    """Equal to the readable versions, up to rounding."""

    fused = find_spec("triton") is not None  # on a GPU, advantages are one kernel

    def reverse_scan(self, x: Tensor, decay: Tensor) -> Tensor:
        """By doubling: after k rounds, y_t holds the terms of 2ᵏ steps, and c_t the product of their decays."""
        assert x.ndim == 2, f"expected [T, N], got {tuple(x.shape)}"
        assert x.shape == decay.shape, f"x {tuple(x.shape)} and decay {tuple(decay.shape)} differ"
        y, c, reach = x, decay, 1
        while reach < len(x):
            ahead = y.clone()
            ahead[:-reach].addcmul_(c[:-reach], y[reach:])
            y = ahead
            if 2 * reach < len(x):
                further = c.new_zeros(c.shape)  # nothing follows the last step
                further[:-reach] = c[:-reach] * c[reach:]
                c = further
            reach *= 2
        return y if y is not x else x.clone()

    def advantages(
        self, rollout: Rollout, gamma: float, gae_lambda: float, value_lambda: float, segment_length: int | None
    ) -> tuple[Tensor, Tensor]:
        return self.scanned(rollout, (gamma, gamma * gae_lambda, gamma * value_lambda), segment_length)

    def scanned(
        self, rollout: Rollout, numbers: tuple[float, float, float] | Tensor, segment_length: int | None
    ) -> tuple[Tensor, Tensor]:
        """`advantages` from γ, γλ and γ·value_lambda; `[3, agents]` if the envs are those of agents side by side."""
        columns = (rollout.reward, rollout.value, rollout.next_value)
        flags = (rollout.terminated, rollout.truncated, rollout.valid)
        if self.fused and all(column.is_cuda and column.is_contiguous() for column in (*columns, *flags)):
            from surefoot.kernels.fused_scan import advantages

            return advantages((*columns, *flags), numbers, segment_length)
        several = isinstance(numbers, Tensor)
        if isinstance(numbers, Tensor):
            numbers = numbers.repeat_interleave(rollout.reward.shape[1] // numbers.shape[1], 1)
        gamma, decay, value_decay = numbers
        delta = td_error(rollout.reward, rollout.value, rollout.next_value, rollout.terminated, gamma)
        delta = delta.masked_fill(~rollout.valid, 0.0)
        going_on = (~rollout.done).to(delta.dtype)
        if segment_length is not None:
            going_on[segment_length - 1 :: segment_length] = 0.0
        advantage = correction = self.reverse_scan(delta, decay * going_on)
        if several or value_decay != decay:
            correction = self.reverse_scan(delta, value_decay * going_on)
        return advantage, rollout.value + correction

    def running_returns_on_device(
        self, reward: Tensor, done: Tensor, valid: Tensor, gamma: float, running: Tensor
    ) -> tuple[Tensor, Tensor]:
        """G_t = x_t + decay_t · G_{t−1}, by a scan over time reversed. An invalid step keeps G: x = 0, decay = 1."""
        x = reward.masked_fill(~valid, 0.0)
        decay = torch.ones_like(x).masked_fill_(valid, gamma)
        decay[1:].masked_fill_(done[:-1], 0.0)
        x[0].addcmul_(decay[0], running)
        seen = self.reverse_scan(x.flip(0), decay.flip(0)).flip(0)
        return seen, seen[-1].masked_fill(done[-1], 0.0)
