"""Converts Gymnasium's spaces to plain ones, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.spaces import plain

if TYPE_CHECKING:
    from surefoot.types import GymSpace


def plain_space(space: GymSpace) -> plain.Space:
    """The same space without Gymnasium. Unsupported ones become `Other`."""
    if isinstance(space, spaces.Box):
        return plain.Box(space.low, space.high)
    if isinstance(space, spaces.Discrete):
        return plain.Discrete(int(space.n), int(space.start), np.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return plain.MultiDiscrete(space.nvec, space.start, np.dtype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return plain.MultiBinary(tuple(space.shape), np.dtype(space.dtype))
    if isinstance(space, spaces.Dict):
        return plain.Dict({key: plain_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return plain.Tuple(tuple(plain_space(part) for part in space.spaces))
    return plain.Other(space)


def gym_space(space: plain.Space) -> GymSpace:
    if isinstance(space, plain.Box):
        return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
    if isinstance(space, plain.Discrete):
        return spaces.Discrete(space.n, start=space.start, dtype=space.dtype.type)
    if isinstance(space, plain.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type, start=space.start)
    if isinstance(space, plain.MultiBinary):
        return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
    if isinstance(space, plain.Dict):
        # Use pairs, because Gymnasium sorts the keys of a dict, and the env's space may have another order.
        return spaces.Dict([(key, gym_space(part)) for key, part in space.spaces.items()])
    if isinstance(space, plain.Tuple):
        return spaces.Tuple([gym_space(part) for part in space.spaces])
    raise UsageError(f"{space} is not supported")
