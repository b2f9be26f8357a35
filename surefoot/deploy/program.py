"""A policy as a list of operations: from a raw observation to an action that the env accepts.

The light agent executes the list with NumPy, and the exporters translate it; nothing else knows how a policy computes.
An operation's result is a row of `size` float32 numbers, and operations name earlier ones by their position in the
list. Everything here is one observation's; the light agent adds a leading axis for batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from surefoot.spaces import plain
    from surefoot.spaces.rows import RowLayout
    from surefoot.types import Array, DType

At: TypeAlias = int  # the position of an operation, for its result
Activation: TypeAlias = Literal["tanh", "relu", "elu", "silu"]
Sides: TypeAlias = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True, eq=False)
class Row:
    """The observation as a row of the layout, without a mask; choices count from 0."""

    size: int


@dataclass(frozen=True, eq=False)
class Remembered:
    """The memory before this step."""

    size: int


@dataclass(frozen=True, eq=False)
class Constant:
    values: Array

    @property
    def size(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Slice:
    x: At
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class Join:
    parts: tuple[At, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Normalize:
    """clip((x − shift) · scale, ±10) where `active` (1 or 0), and x elsewhere."""

    x: At
    shift: Array
    scale: Array
    active: Array

    @property
    def size(self) -> int:
        return len(self.shift)


@dataclass(frozen=True, eq=False)
class OneHot:
    """Feature i is 1 if component `component[i]` of x is `choice[i]`, else 0."""

    x: At
    component: Array
    choice: Array

    @property
    def size(self) -> int:
        return len(self.choice)


@dataclass(frozen=True, eq=False)
class Embed:
    """For each component of x, a row of the table: number `offset` + x, with x clipped to 0..`most`."""

    x: At
    table: Array  # [choices of all components, width]
    offset: Array
    most: Array

    @property
    def size(self) -> int:
        return int(len(self.offset) * self.table.shape[1])


@dataclass(frozen=True, eq=False)
class Picture:
    """x of `shape`, frames × (height × width × channels, or channels first), as channels × height × width, divided."""

    x: At
    frames: int
    image: Sides  # with the frames merged into the channels
    channels_last: bool
    divisor: float

    @property
    def size(self) -> int:
        return math.prod(self.image)


@dataclass(frozen=True, eq=False)
class Convolution:
    x: At
    weight: Array  # [outputs, channels, kernel, kernel]
    bias: Array
    image: Sides  # the sides of x
    stride: tuple[int, int]
    padding: int

    @property
    def result(self) -> Sides:
        return len(self.bias), *_sides(self.image, self.weight.shape[2], self.stride, self.padding)

    @property
    def size(self) -> int:
        return math.prod(self.result)


@dataclass(frozen=True, eq=False)
class MaxPool:
    x: At
    image: Sides
    kernel: int
    stride: int
    padding: int

    @property
    def result(self) -> Sides:
        return self.image[0], *_sides(self.image, self.kernel, (self.stride, self.stride), self.padding)

    @property
    def size(self) -> int:
        return math.prod(self.result)


@dataclass(frozen=True, eq=False)
class Linear:
    x: At
    weight: Array  # [outputs, inputs]
    bias: Array

    @property
    def size(self) -> int:
        return len(self.bias)


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """gain · (x − mean) / √(variance + 1e-5) + bias, mean and variance over the numbers of x."""

    x: At
    gain: Array
    bias: Array

    @property
    def size(self) -> int:
        return len(self.bias)


@dataclass(frozen=True, eq=False)
class Activate:
    x: At
    kind: Activation
    size: int


@dataclass(frozen=True, eq=False)
class Add:
    x: At
    y: At
    size: int


@dataclass(frozen=True, eq=False)
class Gru:
    """The new memory h of a GRU. Gates in PyTorch's order: reset, update, new."""

    x: At
    memory: At
    of_input: Array  # [3·H, inputs]
    of_hidden: Array  # [3·H, H]
    input_bias: Array
    hidden_bias: Array

    @property
    def size(self) -> int:
        return int(self.of_hidden.shape[1])


@dataclass(frozen=True, eq=False)
class Lstm:
    """The new memory of an LSTM, h and c side by side. Gates in PyTorch's order: input, forget, cell, output."""

    x: At
    memory: At
    of_input: Array  # [4·H, inputs]
    of_hidden: Array  # [4·H, H]
    input_bias: Array
    hidden_bias: Array

    @property
    def size(self) -> int:
        return int(2 * self.of_hidden.shape[1])


@dataclass(frozen=True, eq=False)
class SquashMean:
    """centre + half · tanh(x)."""

    x: At
    centre: Array
    half: Array

    @property
    def size(self) -> int:
        return len(self.centre)


@dataclass(frozen=True, eq=False)
class StateStd:
    """log max(softplus(x), e⁻²⁰): a log std from the network."""

    x: At
    size: int


@dataclass(frozen=True, eq=False)
class SdeStd:
    """½ log(x² · `variance` + LEAST_STD²), clipped: the log std of gSDE."""

    x: At
    variance: Array  # [features, Gaussian dimensions]: σ²

    @property
    def size(self) -> int:
        return int(self.variance.shape[1])


@dataclass(frozen=True, eq=False)
class Masked:
    """x where the mask, from its number `start` on, allows the choice; a very low logit elsewhere."""

    x: At
    start: int
    size: int


Operation: TypeAlias = (
    Row | Remembered | Constant | Slice | Join | Normalize | OneHot | Embed | Picture | Convolution | MaxPool | Linear
    | LayerNorm | Activate | Add | Gru | Lstm | SquashMean | StateStd | SdeStd | Masked
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Choice:
    """Discrete and MultiDiscrete: the likeliest of each variable's choices, counted from its `start`."""

    logits: At
    sizes: tuple[int, ...]
    start: Array  # [variables], int64
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class Bits:
    """MultiBinary: 1 where the logit is above 0."""

    logits: At
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class Clipped:
    """Box: the mean, clipped to the bounds."""

    mean: At
    log_std: At
    low: Array  # [numbers], in the env's dtype
    high: Array
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class Squashed:
    """Box: centre + half · tanh(mean). The bounds are finite."""

    mean: At
    log_std: At
    low: Array  # [numbers], float64
    high: Array
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, eq=False)
class BetaPeak:
    """Box: the mode of a Beta distribution between the bounds, α, β = 1 + softplus(raw)."""

    raw: At  # raw α, then raw β
    low: Array  # [numbers], float64
    high: Array
    shape: tuple[int, ...]
    dtype: DType


Head: TypeAlias = Choice | Bits | Clipped | Squashed | BetaPeak


@dataclass(frozen=True)
class Exploration:
    """gSDE: noise that is a function of the features, from a matrix that is redrawn every few steps."""

    features: At
    log_std: Array  # [features, Gaussian dimensions], clipped
    resample: int | None  # steps; None: at the start of an episode


@dataclass(frozen=True)
class Program:
    layout: RowLayout  # for observations and masks
    action_space: plain.Space
    operations: tuple[Operation, ...]
    heads: tuple[Head, ...]  # one per part of the action space, depth first
    memory: At | None  # the new memory
    exploration: Exploration | None
    columns: Array | None = None  # which columns of the policy's own rows this layout has; None: all

    @property
    def memory_size(self) -> int:
        return 0 if self.memory is None else self.operations[self.memory].size

    @cached_property
    def params(self) -> tuple[At, ...]:
        """The parameters of the action's distribution, side by side."""
        return tuple(at for head in self.heads for at in params_of(head))

    @property
    def num_numbers(self) -> int:
        """Numbers in an action."""
        return sum(width(head) for head in self.heads)

    @cached_property
    def acting(self) -> list[At]:
        """The operations that the distribution's parameters and the memory depend on, in order."""
        return self.needed(*self.params, *(() if self.memory is None else (self.memory,)))

    def needed(self, *results: At) -> list[At]:
        """The operations that these results depend on, in order."""
        found, open_ends = set[At](), list(results)
        while open_ends:
            if (at := open_ends.pop()) not in found:
                found.add(at)
                open_ends.extend(sources(self.operations[at]))
        return sorted(found)


def sources(operation: Operation) -> Iterator[At]:
    """The results that an operation reads."""
    yield from (getattr(operation, field.name) for field in fields(operation) if field.name in ("x", "y", "memory"))
    if isinstance(operation, Join):
        yield from operation.parts


def params_of(head: Head) -> tuple[At, ...]:
    if isinstance(head, (Clipped, Squashed)):
        return (head.mean, head.log_std)
    return (head.raw,) if isinstance(head, BetaPeak) else (head.logits,)


def mode_of(head: Head) -> At:
    return params_of(head)[0]  # what the deterministic action depends on


def width(head: Head) -> int:  # numbers in this part of an action
    return len(head.sizes) if isinstance(head, Choice) else math.prod(head.shape)


def _sides(image: Sides, kernel: int, stride: tuple[int, int], padding: int) -> tuple[int, int]:
    height, width = ((n + 2 * padding - kernel) // s + 1 for n, s in zip(image[1:], stride, strict=True))
    return height, width
