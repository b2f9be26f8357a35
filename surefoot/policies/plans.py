"""What a policy's networks are made of, as data that PyTorch's modules and the exporters follow. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.policies.config import PolicyConfig
    from surefoot.spaces.rows import Leaf, RowLayout

MOST_ONE_HOT = 64  # choices; an embedding is smaller for more
NATURE_SIDE = 36  # the smallest side for its three unpadded convolutions
TINY_SIDE = 16  # up to this side, an image is more likely a grid than a picture
POOL = (3, 2, 1)  # kernel, stride and padding of IMPALA's max-pooling


@dataclass(frozen=True, slots=True)
class Convolve:
    outputs: int  # channels
    kernel: int
    stride: tuple[int, int] = (1, 1)
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Rectify:
    """max(x, 0)."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The maximum over squares, see POOL."""


@dataclass(frozen=True, slots=True)
class Residue:
    """x + conv(relu(conv(relu(x)))), two 3×3 convolutions."""


Layer: TypeAlias = Convolve | Rectify | Pool | Residue
Plan: TypeAlias = tuple[Layer, ...]


def needs_encoder(layout: RowLayout) -> bool:
    """False if the flattened observation can be used as it is."""
    return any(leaf.kind not in ("vector", "binary") for leaf in layout.leaves)


def shares_trunk(config: PolicyConfig, layout: RowLayout) -> bool:
    """Whether actor and critic share their networks up to the last layer."""
    images = any(leaf.kind == "image" for leaf in layout.leaves)
    return images and not config.critic_obs if config.shared_trunk is None else config.shared_trunk


def is_embedded(leaf: Leaf) -> bool:
    """Whether a choice is a learned vector instead of a one-hot one."""
    return max(leaf.sizes) > MOST_ONE_HOT


def geometry(leaf: Leaf) -> tuple[tuple[int, int, int], bool]:
    """((channels, height, width) of an image with its frames merged, whether its channels come last)."""
    rank = len(leaf.shape)
    if rank not in (2, 3, 4):
        raise UsageError(f"{leaf.name} has the shape {leaf.shape}; images have two to four axes")
    last = rank > 2 and leaf.shape[-1] <= leaf.shape[-3]
    if last:
        height, width, channels = leaf.shape[-3:]
    else:
        channels, (height, width) = leaf.shape[-3] if rank > 2 else 1, leaf.shape[-2:]
    return (channels * (leaf.shape[0] if rank == 4 else 1), height, width), last


def divisor(leaf: Leaf) -> float:
    """What an image is divided by: the largest magnitude that its space allows, if that is finite and above 1."""
    limit = float(np.finfo(leaf.dtype.name).max) if leaf.dtype.kind == "f" else math.inf
    bounds = [abs(bound) for bound in (leaf.low, leaf.high)]
    # Some spaces use the largest float to mean no bound.
    return max([1.0, *(bound for bound in bounds if bound < limit)]) if bounds[1] < limit else 1.0


def chosen(leaf: Leaf, architecture: str) -> str:
    """The network for an image, chosen by its size if the setting says so."""
    _, height, width = geometry(leaf)[0]
    small_side, large_side = min(height, width), max(height, width)
    if architecture == "by-size" and large_side <= TINY_SIDE:
        return "tiny"
    if architecture in ("by-size", "auto"):  # auto: the choice of 0.1.0, whose policies must still load
        return "nature" if small_side >= NATURE_SIDE else "small"
    if architecture == "nature" and small_side < NATURE_SIDE:
        raise UsageError(
            f"encoder=nature needs images of at least {NATURE_SIDE}×{NATURE_SIDE}, but {leaf.name} is "
            f"{height}×{width}; use by-size, small or impala"
        )
    return architecture


def nature(height: int, width: int) -> Plan:
    """Mnih et al. 2015. 84×84 gives 64×7×7 = 3136 numbers."""
    convolutions = (Convolve(32, 8, (4, 4)), Convolve(64, 4, (2, 2)), Convolve(64, 3))
    return tuple(layer for convolution in convolutions for layer in (convolution, Rectify()))


def small(height: int, width: int) -> Plan:
    """At least two 3×3 convolutions, with 32 channels and then 64, that halve each side while it is 8 or longer."""
    layers: list[Layer] = []
    sides = (height, width)
    while len(layers) < 4 or max(sides) >= 8:
        stride = (2 if sides[0] >= 8 else 1, 2 if sides[1] >= 8 else 1)
        layers += [Convolve(64 if layers else 32, 3, stride, 1), Rectify()]
        sides = (-(-sides[0] // stride[0]), -(-sides[1] // stride[1]))
    return tuple(layers)


def tiny(height: int, width: int) -> Plan:
    """Two 3×3 convolutions, with 16 channels and then 32. 7×7 gives 32×4×4 = 512 numbers; 12×12 the most, 1152."""
    first = (2 if height > 12 else 1, 2 if width > 12 else 1)
    second = (2 if height > 4 else 1, 2 if width > 4 else 1)
    return (Convolve(16, 3, first, 1), Rectify(), Convolve(32, 3, second, 1), Rectify())


def impala(height: int, width: int) -> Plan:
    """The deep network of Espeholt et al. 2018: fifteen convolutions in three groups, each halving the sides."""
    groups = ((Convolve(outputs, 3, padding=1), Pool(), Residue(), Residue()) for outputs in (16, 32, 32))
    return (*(layer for group in groups for layer in group), Rectify())


# The layers for an image's height and width, and the width of the linear layer after them.
PLANS: dict[str, tuple[Callable[[int, int], Plan], int]] = {
    "nature": (nature, 512),
    "small": (small, 256),
    "tiny": (tiny, 64),
    "impala": (impala, 256),
}
