"""Which episodes ended in a rollout on a device, computed there: the host reads a short list, not every step."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Ended(NamedTuple):
    """The episodes that ended, in the order of steps and envs, and what each env carries into the next rollout."""

    columns: Tensor  # [E, 4] float64: env, return, length, whether the clock ended it
    ret: Tensor  # [N] float64, of the open episodes
    length: Tensor  # [N] float64


def ended_episodes(reward: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor, carried: Tensor) -> Ended:
    """Returns and lengths, by sums that restart after every end. All `[T, N]`; `carried` `[2, N]` float64: return and
    length of the episodes that were open before.
    """
    sums = _sums(reward, ended, valid, carried)
    time, env = (ended & valid).nonzero(as_tuple=True)
    cut = ~terminated[time, env]
    columns = torch.stack([env.double(), sums[0, time, env], sums[1, time, env], cut.double()], 1)
    rest = sums[:, -1] * ~ended[-1]
    return Ended(columns, rest[0], rest[1])


def packed_episodes(
    reward: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor, carried: Tensor, into: Tensor
) -> tuple[Tensor, Tensor]:
    """The same without waiting for their number: (the number `[]`, the new `carried`). The first rows of `into`,
    `[T·N + 1, 4]` float64, receive the columns; what the others receive is of no use.
    """
    if reward.is_cuda and find_spec("triton") is not None:
        from surefoot.kernels.fused_episodes import packed

        return packed(reward.double(), terminated, ended, valid, carried, into)
    (steps, num_envs), sums = reward.shape, running_sums(reward, ended, valid, carried)
    over = (ended & valid).flatten()
    number = over.cumsum(0)
    env = torch.arange(num_envs, dtype=torch.float64, device=over.device).expand(steps, num_envs)
    rows = torch.stack([env, sums[0], sums[1], (~terminated).double()], -1).view(-1, 4)
    into.index_copy_(0, torch.where(over, number - 1, len(over)), rows)
    return number[-1], sums[:, -1] * ~ended[-1]


def _sums(reward: Tensor, ended: Tensor, valid: Tensor, carried: Tensor) -> Tensor:
    if reward.is_cuda and find_spec("triton") is not None:
        from surefoot.kernels.fused_episodes import running_sums as fused_sums

        return fused_sums(reward.double(), ended, valid, carried)
    return running_sums(reward, ended, valid, carried)


def running_sums(reward: Tensor, ended: Tensor, valid: Tensor, carried: Tensor) -> Tensor:
    """Return and length so far of the episode of every step, `[2, T, N]` float64."""
    own = torch.stack([reward.double() * valid, valid.double()])
    own[:, 0] += carried
    going_on = torch.ones_like(own[0])
    going_on[1:] = (~ended[:-1]).double()
    return _summed(own, going_on)


def _summed(x: Tensor, going_on: Tensor) -> Tensor:
    """y_t = x_t + going_on_t · y_{t−1} along the middle axis, by doubling: log₂ T rounds instead of T steps."""
    reach, steps = 1, x.shape[1]
    while reach < steps:
        further = x.clone()
        further[:, reach:] += going_on[reach:] * x[:, :-reach]
        joined = torch.zeros_like(going_on)
        joined[reach:] = going_on[reach:] * going_on[:-reach]
        x, going_on, reach = further, joined, 2 * reach
    return x
