"""Stored actions in the form that their env takes: whole numbers shifted, continuous ones brought into the bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from surefoot.types import Array, DType, GymSpace

    Send: TypeAlias = Callable[[Array], Array]  # [..., stored numbers] → [..., *shape of the space]


def sender(space: GymSpace, bounds: str = "clip") -> Send:
    """What sends the actions of a simple space (not Dict and Tuple). `bounds`: `action_bounds`, for a Box."""
    match space:
        case spaces.Discrete():
            return partial(_choice, start=int(space.start), dtype=None if space.dtype == np.int64 else space.dtype)
        case spaces.MultiDiscrete():
            return partial(_choices, shape=space.shape, start=space.start.astype(np.int64), dtype=space.dtype)
        case spaces.MultiBinary():
            return partial(_bits, shape=space.shape, dtype=space.dtype)
        case spaces.Box():
            return _box(space, bounds)
    raise AssertionError(f"not a simple space: {space}")


def _box(space: spaces.Box, bounds: str) -> Send:
    if bounds == "clip":
        return partial(_clipped, shape=space.shape, low=space.low, high=space.high, dtype=space.dtype)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if bounds == "beta":
        return partial(_stretched, shape=space.shape, low=low, high=high, dtype=space.dtype)
    assert bounds == "tanh", bounds
    centre, half = low / 2 + high / 2, high / 2 - low / 2
    return partial(_squashed, shape=space.shape, range_=(centre, half), low=low, high=high, dtype=space.dtype)


def _choice(action: Array, start: int, dtype: DType | None) -> Array:
    sent = action + start if start else action
    return sent if dtype is None else sent.astype(dtype)


def _choices(action: Array, shape: tuple[int, ...], start: Array, dtype: DType) -> Array:
    return (action.reshape(*action.shape[:-1], *shape) + start).astype(dtype, copy=False)


def _bits(action: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    return action.reshape(*action.shape[:-1], *shape).astype(dtype, copy=False)


def _clipped(action: Array, shape: tuple[int, ...], low: Array, high: Array, dtype: DType) -> Array:
    return np.clip(action.reshape(*action.shape[:-1], *shape), low, high).astype(dtype, copy=False)


def _squashed(
    action: Array, shape: tuple[int, ...], range_: tuple[Array, Array], low: Array, high: Array, dtype: DType
) -> Array:
    """centre + half·tanh(u). Clipped, because rounding may cross a bound, which is a number of the env's dtype."""
    centre, half = range_
    squashed = np.tanh(action.astype(np.float64).reshape(*action.shape[:-1], *shape))
    sent: Array = np.clip(centre + half * squashed, low, high).astype(dtype)
    return sent


def _stretched(action: Array, shape: tuple[int, ...], low: Array, high: Array, dtype: DType) -> Array:
    """low + (high − low)·x, clipped for the same reason."""
    x = action.astype(np.float64).reshape(*action.shape[:-1], *shape)
    sent: Array = np.clip(low * (1.0 - x) + high * x, low, high).astype(dtype)
    return sent
