"""Spaces as plain values, without Gymnasium: all that a saved policy needs to know about its env.

Rows, masks and the light agent read these. Gymnasium's own spaces are converted at the door (`surefoot.spaces.of_gym`),
so that acting with a saved policy imports NumPy alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from surefoot.errors import UsageError
from surefoot.schema import NUMBERS, Items, Misfit, Whole
from surefoot.text import one_line

if TYPE_CHECKING:
    from surefoot.types import Array, DType, GymSpace

LARGEST = 2**28  # bytes of a Box's bound: larger than any real observation
SMALLEST_INT, LARGEST_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, eq=False)
class Box:
    low: Array
    high: Array

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.low.shape
        return shape

    @property
    def dtype(self) -> DType:
        return self.low.dtype

    def __str__(self) -> str:
        return f"Box{self.shape}"


@dataclass(frozen=True, eq=False)
class Discrete:
    n: int
    start: int
    dtype: DType

    def __str__(self) -> str:
        return f"Discrete({self.n}, start={self.start})" if self.start else f"Discrete({self.n})"


@dataclass(frozen=True, eq=False)
class MultiDiscrete:
    nvec: Array
    start: Array
    dtype: DType

    def __str__(self) -> str:
        return one_line(f"MultiDiscrete({self.nvec})", 40)


@dataclass(frozen=True, eq=False)
class MultiBinary:
    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"MultiBinary({self.shape[0] if len(self.shape) == 1 else self.shape})"


@dataclass(frozen=True, eq=False)
class Dict:
    spaces: dict[str, Space]  # in the order of the env's space

    def __str__(self) -> str:
        return f"Dict({', '.join(self.spaces)})"


@dataclass(frozen=True, eq=False)
class Tuple:
    spaces: tuple[Space, ...]

    def __str__(self) -> str:
        return f"Tuple({', '.join(map(str, self.spaces))})"


@dataclass(frozen=True, eq=False)
class Other:
    """A space that is not supported. Whoever reads it says so, and where it was found."""

    space: object

    def __str__(self) -> str:
        return one_line(str(self.space), 40)


Space: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple | Other


def as_plain(space: GymSpace | Space) -> Space:
    if isinstance(space, Space):
        return space
    from surefoot.spaces.of_gym import plain_space  # whoever has such a space has imported Gymnasium

    return plain_space(space)


def from_json(data: Mapping[str, Any]) -> Space:
    """The space that `space_to_json` wrote; ValueError, TypeError, KeyError or UsageError for anything else."""
    kind = data["type"]
    if kind == "Box":
        return _box(data)
    if kind == "Discrete":
        Whole(1, LARGEST_INT).check(data["n"], "n")
        Whole(SMALLEST_INT, LARGEST_INT).check(data["start"], "start")
        return Discrete(data["n"], data["start"], _dtype(data["dtype"], "iu"))
    if kind == "MultiDiscrete":
        dtype = _dtype(data["dtype"], "iu")
        nvec, start = (_whole(data[name], name, dtype) for name in ("nvec", "start"))
        if nvec.shape != start.shape or (nvec < 1).any():
            raise Misfit(f"nvec {nvec.shape} and start {start.shape} do not describe choices")
        return MultiDiscrete(nvec, start, dtype)
    if kind == "MultiBinary":
        return MultiBinary(_shape(data["shape"]), np.dtype(np.int8))
    if kind == "Dict":
        pairs = [(key, from_json(part)) for key, part in data["spaces"]]
        if not all(isinstance(key, str) for key, _ in pairs) or len(dict(pairs)) < len(pairs):
            raise Misfit("the keys of a Dict space are not different texts")
        return Dict(dict(pairs))
    if kind == "Tuple":
        return Tuple(tuple(from_json(part) for part in data["spaces"]))
    raise UsageError(f"unknown kind of space in the checkpoint: {kind!r}")


def _box(data: Mapping[str, Any]) -> Box:
    dtype = _dtype(data["dtype"], "fiub")
    shape = _shape(data["shape"], dtype.itemsize)
    number: type[float] = float if dtype.kind == "f" else int
    low, high = (_long([number(x) for x in data[side]], shape, dtype) for side in ("low", "high"))
    if not (low <= high).all():  # False for NaN as well
        raise Misfit("a bound of a Box is not a number, or low is above high")
    return Box(low, high)


def _dtype(name: str, kinds: str) -> DType:
    if name not in NUMBERS or np.dtype(name).kind not in kinds:
        raise Misfit(f"dtype {name!r} is not one of numbers")
    dtype: DType = np.dtype(name)
    return dtype


def _shape(sides: list[int], itemsize: int = 1) -> tuple[int, ...]:
    """The shape, after checking that the bounds fit into memory."""
    Items(Whole()).check(sides, "shape")
    if math.prod(sides) * itemsize > LARGEST:
        raise Misfit(f"shape {sides} is larger than any space of ours")
    return tuple(sides)


def _whole(numbers: object, name: str, dtype: DType) -> Array:
    array = np.array(numbers)
    if array.dtype.kind not in "iu" and array.size:
        raise Misfit(f"{name} holds something other than whole numbers")
    return array.astype(dtype)


def _long(numbers: list[int] | list[float], shape: tuple[int, ...], dtype: DType) -> Array:
    array = np.array(numbers, dtype)
    return np.full(shape, array[0]) if array.size == 1 else array.reshape(shape)
