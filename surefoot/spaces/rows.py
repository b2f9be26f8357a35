"""Represents every observation as one row of numbers.

Rollouts, minibatches, checkpoints, workers' shared memory and normalisers then handle one tensor, whatever the env's
space; only the policy's encoder takes a row apart again. A single Box is its own row, in its own shape and dtype (an
image stays uint8). Everything else, however nested, is flattened leaf by leaf into float32, which represents integers
up to 2²⁴ exactly. An action mask is stored at the end of the row, so it is available wherever the observation is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from surefoot.errors import UsageError
from surefoot.spaces import plain

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array, DType

    Rows = TypeVar("Rows", Array, Tensor)

MASK = "action_mask"  # the conventional key of a mask in a Dict observation
MOST_CHOICES = 2**24  # float32 represents all integers up to this
Kind = Literal["vector", "image", "discrete", "multi_discrete", "binary"]
CHOICES: tuple[Kind, ...] = ("discrete", "multi_discrete", "binary")


@dataclass(frozen=True)
class Leaf:
    """One simple space within another, and its position in a row."""

    path: str  # "" the root, "camera", "robot/arm", "0/x"
    kind: Kind
    shape: tuple[int, ...]  # shape of the value; () for Discrete
    dtype: DType
    offset: int
    size: int  # numbers in a row
    sizes: tuple[int, ...] = ()  # choices of each component, for discrete ones
    start: int | Array = 0  # the first choice of each; in a row, choices count from 0
    low: float = -np.inf  # for images: the bounds of the space
    high: float = np.inf

    @property
    def name(self) -> str:
        """The name to show in messages."""
        return self.path or "observation"

    @property
    def span(self) -> slice:
        return slice(self.offset, self.offset + self.size)


class RowLayout:
    """The position of every leaf of a space in a row. `mask_size`: size of the action mask at its end."""

    def __init__(self, space: plain.Space, mask_size: int = 0) -> None:
        self.tree, self.mask_size = space, mask_size
        self.mask_in_obs = bool(mask_size) and isinstance(space, plain.Dict) and MASK in space.spaces
        self.leaves = tuple(_leaves(space, "", 0, skip=MASK if self.mask_in_obs else None))
        if not self.leaves:
            raise UsageError(f"the observation space {space} is empty")
        self.numbers = sum(leaf.size for leaf in self.leaves)
        self.plain = isinstance(space, plain.Box) and not mask_size
        self.shape: tuple[int, ...] = self.leaves[0].shape if self.plain else (self.numbers + mask_size,)
        kept = self.plain and self.leaves[0].dtype.kind != "f"
        self.dtype: DType = self.leaves[0].dtype if kept else np.dtype(np.float32)
        self.limits = None if self.plain else _limits(self.leaves, self.shape)

    @property
    def mask(self) -> slice | None:
        return slice(self.numbers, self.numbers + self.mask_size) if self.mask_size else None

    @property
    def learned(self) -> slice:
        """The part of a row that holds the observation."""
        return slice(0, self.numbers)

    def pack(self, value: object, mask: Array | None = None) -> Array:
        """Pack one row. ValueError if a leaf does not have the shape of its space."""
        if self.plain:
            return _shaped(value, self.leaves[0])
        row = np.empty(self.shape, np.float32)
        for leaf in self.leaves:
            row[leaf.span] = _shaped(part_at(value, leaf.path), leaf).reshape(-1) - np.reshape(leaf.start, -1)
        if self.mask_size:
            row[self.numbers :] = part_at(value, MASK) if mask is None else mask
        return row

    def pack_batch(self, value: object, count: int, mask: Array | None = None) -> Array:
        """Pack the rows of a vector env's observation, whose leaves have one more leading axis."""
        if self.plain:
            return _numbers(value, self.leaves[0])
        rows = np.empty((count, *self.shape), np.float32)
        for leaf in self.leaves:
            part = _numbers(part_at(value, leaf.path), leaf).reshape(count, -1)
            if part.shape[1] != leaf.size:
                raise ValueError(f"'{leaf.path}' has {part.shape[1]} numbers; its space says {leaf.size}")
            rows[:, leaf.span] = part - np.reshape(leaf.start, -1)
        if self.mask_size:
            rows[:, self.numbers :] = part_at(value, MASK) if mask is None else mask
        return rows

    def count(self, value: object) -> int | None:
        """How many observations a batch holds; None for a single one."""
        leaf = self.leaves[0]
        shape = np.shape(part_at(value, leaf.path))
        return None if len(shape) == len(leaf.shape) else int(shape[0])

    def unpack(self, row: Array) -> object:
        """The value of the space that a row holds (without a mask in it)."""
        values = {leaf.path: _value(row if self.plain else row[leaf.span], leaf) for leaf in self.leaves}
        return _rebuild(self.tree, "", values)

    def parts(self, rows: Rows) -> dict[str, Rows]:
        """Path → values `[..., *leaf.shape]`, as views of the rows (NumPy's or PyTorch's)."""
        if self.plain:
            return {"": rows}
        return {leaf.path: rows[..., leaf.span].reshape(*rows.shape[:-1], *leaf.shape) for leaf in self.leaves}


def _leaves(space: plain.Space, path: str, offset: int, skip: str | None = None) -> Iterator[Leaf]:
    """Depth first, in the order of the space."""
    inner: list[tuple[str, plain.Space]] = []
    if isinstance(space, plain.Dict):
        inner = [(str(key), part) for key, part in space.spaces.items() if key != skip]
    elif isinstance(space, plain.Tuple):
        inner = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        yield _leaf(space, path, offset)
        return
    for key, part in inner:
        if "/" in key:
            raise UsageError(f"the key {key!r} of the space has a '/', which we separate keys with; rename it")
        for leaf in _leaves(part, f"{path}/{key}" if path else key, offset):
            yield leaf
            offset = leaf.offset + leaf.size


def _leaf(space: plain.Space, path: str, offset: int) -> Leaf:
    name = path or "the space"
    if isinstance(space, plain.Box):
        if 0 in space.shape:
            raise UsageError(f"{name} = {space} is empty")
        image = len(space.shape) >= 3 or (len(space.shape) == 2 and space.dtype == np.uint8)
        if len(space.shape) > 4:
            raise UsageError(f"{name} = {space} has {len(space.shape)} axes; images have two to four; reshape it")
        size, low, high = int(np.prod(space.shape)), float(space.low.min()), float(space.high.max())
        kind: Kind = "image" if image else "vector"
        return Leaf(path, kind, space.shape, space.dtype, offset, size, low=low, high=high)
    if isinstance(space, plain.Discrete):
        _check_choices(name, space, space.n)
        return Leaf(path, "discrete", (), space.dtype, offset, 1, (space.n,), space.start)
    if isinstance(space, plain.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        if not sizes:
            raise UsageError(f"{name} = {space} is empty")
        _check_choices(name, space, max(sizes))
        return Leaf(path, "multi_discrete", space.nvec.shape, space.dtype, offset, len(sizes), sizes, space.start)
    if isinstance(space, plain.MultiBinary):
        size = int(np.prod(space.shape))
        if not size:
            raise UsageError(f"{name} = {space} is empty")
        return Leaf(path, "binary", space.shape, space.dtype, offset, size)
    assert isinstance(space, plain.Other)
    from surefoot.spaces.supported import unsupported

    raise unsupported(space.space, name)


def _check_choices(name: str, space: plain.Space, choices: int) -> None:
    if choices > MOST_CHOICES:
        raise UsageError(f"{name} = {space} has more than {MOST_CHOICES:,} choices, which no network could tell apart")


def part_at(value: Any, path: str) -> Any:
    """The part of a nested value at a path. ValueError if there is none."""
    try:
        for key in path.split("/") if path else ():
            value = value[int(key)] if isinstance(value, (tuple, list)) else value[key]
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"'{path}' is missing") from None
    return value


def _shaped(value: object, leaf: Leaf) -> Array:
    # Assigning a wrong shape would broadcast silently.
    array = _numbers(value, leaf)
    if array.shape != leaf.shape:
        raise ValueError(f"{_called(leaf)} has the shape {array.shape}; its space says {leaf.shape}")
    return array


def _numbers(value: object, leaf: Leaf) -> Array:
    # NumPy would drop imaginary parts and parse numbers from strings.
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{_called(leaf)} is of {array.dtype}; its space says {leaf.dtype}")
    return array


def _called(leaf: Leaf) -> str:
    return f"'{leaf.path}'" if leaf.path else "an observation"


def _limits(leaves: tuple[Leaf, ...], shape: tuple[int, ...]) -> Array | None:
    """`[W]` uint32: the bits of a choice in a row must be below these; None if there are no choices.

    The bits of non-negative floats are ordered like the numbers, and those of negative ones are above them all, so one
    comparison checks both ends of a range.
    """
    limits = np.full(shape, np.iinfo(np.uint32).max, np.uint32)
    for leaf in leaves:
        if leaf.kind in CHOICES:
            sizes = np.array(leaf.sizes or (2,) * leaf.size, np.float32)
            limits[leaf.span] = sizes.view(np.uint32)
    return limits if any(leaf.kind in CHOICES for leaf in leaves) else None


def _value(numbers: Array, leaf: Leaf) -> object:
    array = (numbers.reshape(leaf.shape) + leaf.start).astype(leaf.dtype, copy=False)
    return array[()] if leaf.kind == "discrete" else np.asarray(array)


def _rebuild(space: plain.Space, path: str, values: dict[str, object]) -> object:
    join = f"{path}/" if path else ""
    if isinstance(space, plain.Dict):
        return {key: _rebuild(part, f"{join}{key}", values) for key, part in space.spaces.items()}
    if isinstance(space, plain.Tuple):
        return tuple(_rebuild(part, f"{join}{index}", values) for index, part in enumerate(space.spaces))
    return values[path]
