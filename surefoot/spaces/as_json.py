"""Spaces as JSON, so that a saved policy can be loaded without its environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.schema import NUMBERS, Items, Misfit, Whole

if TYPE_CHECKING:
    from surefoot.types import Array, DType, GymSpace

LARGEST = 2**28  # bytes of a Box's bound: larger than any real observation


def space_to_json(space: GymSpace) -> dict[str, object]:
    if isinstance(space, spaces.Box):
        # repr of a number is exact, and "inf" is not a JSON number.
        low, high = (_short([repr(x) for x in side.reshape(-1).tolist()]) for side in (space.low, space.high))
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": low,
            "high": high,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise UsageError(f"spaces of {type(space).__name__} cannot be saved")


def space_from_json(data: Mapping[str, Any]) -> GymSpace:
    """The space that `space_to_json` wrote; ValueError, TypeError or KeyError for anything else."""
    kind = data["type"]
    if kind == "Box":
        dtype = _dtype(data["dtype"])
        shape = _shape(data["shape"], dtype.itemsize)
        number: type[float] = float if dtype.kind == "f" else int
        low, high = (_long([number(x) for x in data[side]], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=_dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = _dtype(data["dtype"])
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=dtype.type, start=np.array(data["start"]))
    if kind == "MultiBinary":
        shape = _shape(data["shape"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Dict":
        return spaces.Dict({key: space_from_json(part) for key, part in data["spaces"]})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in data["spaces"]])
    raise UsageError(f"unknown kind of space in the checkpoint: {kind!r}")


def _dtype(name: str) -> DType:
    if name not in NUMBERS:
        raise Misfit(f"dtype {name!r} is not one of numbers")
    dtype: DType = np.dtype(name)
    return dtype


def _shape(sides: list[int], itemsize: int = 1) -> tuple[int, ...]:
    """The shape, after checking that the bounds fit into memory."""
    Items(Whole()).check(sides, "shape")
    if math.prod(sides) * itemsize > LARGEST:
        raise Misfit(f"shape {sides} is larger than any space of ours")
    return tuple(sides)


def _short(numbers: list[str]) -> list[str]:
    """Shorten bounds that repeat one number thousands of times, as an image's do."""
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _long(numbers: list[int] | list[float], shape: tuple[int, ...], dtype: DType) -> Array:
    array = np.array(numbers, dtype)
    return np.full(shape, array[0]) if array.size == 1 else array.reshape(shape)
