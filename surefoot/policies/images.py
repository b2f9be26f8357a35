"""CNNs for images. Nothing here works in place, because TRPO needs second derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.policies.layers import convolution, linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.spaces.layout import Leaf

Generator: TypeAlias = torch.Generator | None  # draws the initial weights; None: PyTorch's global one
NATURE_SIDE = 36  # the smallest side for its three unpadded convolutions
TINY_SIDE = 16  # up to this side, an image is more likely a grid than a picture


class Image(nn.Module):
    """A CNN for H×W, H×W×C, C×H×W or K frames of the last two; the channels of all frames are merged.

    The channel axis is the shorter of first and last, or the last if they are equal.
    """

    def __init__(self, leaf: Leaf, architecture: str, generator: Generator = None) -> None:
        super().__init__()
        self.leaf, self.scale = leaf, _scale(leaf)
        self.image_shape, self.channels_last = geometry(leaf)
        self.architecture = chosen(leaf, architecture)
        build, self.size = CNNS[self.architecture]
        self.cnn = build(*self.image_shape, generator)
        self.linear = linear(outputs_of(self.cnn, *self.image_shape[1:])[-1], self.size, generator)

    def images(self, values: Tensor) -> Tensor:
        """`[B, *leaf.shape]` as scaled float32 `[B, C, H, W]`. A channels-last frame stays so in memory."""
        x = values.movedim(-1, -3) if self.channels_last else values
        x = x.reshape(len(x), *self.image_shape).float()
        return x if self.scale == 1.0 else x / self.scale

    def forward(self, values: Tensor) -> Tensor:
        return F.relu(self.linear(self.cnn(self.images(values)).flatten(1)))

    def describe(self) -> str:
        order = "HW" if len(self.leaf.shape) == 2 else "HWC" if self.channels_last else "CHW"
        frames = f"{self.leaf.shape[0]} frames of " if len(self.leaf.shape) == 4 else ""
        scaling = "as it is" if self.scale == 1.0 else f"/{self.scale:g}"
        shape = "×".join(map(str, self.leaf.shape))
        return f"image {shape} ({frames}{order}, {scaling}) → {self.architecture} CNN"


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


def outputs_of(cnn: nn.Sequential, height: int, width: int) -> list[int]:
    """Outputs of each layer for one image, computed without running it: the image may be huge."""
    found, sides, channels = [], [height, width], 1
    for module in cnn:
        if isinstance(module, (nn.Conv2d, nn.MaxPool2d)):
            size, stride, padding = (_pair(x) for x in (module.kernel_size, module.stride, module.padding))
            sides = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sides, size, stride, padding, strict=True)]
            channels = module.out_channels if isinstance(module, nn.Conv2d) else channels
        found.append(channels * sides[0] * sides[1])
    return found


def _pair(value: int | str | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def nature(channels: int, height: int, width: int, generator: Generator = None) -> nn.Sequential:
    """Mnih et al. 2015. 84×84 gives 64×7×7 = 3136 numbers."""
    return nn.Sequential(
        *(convolution(channels, 32, 8, generator, stride=4), nn.ReLU()),
        *(convolution(32, 64, 4, generator, stride=2), nn.ReLU()),
        *(convolution(64, 64, 3, generator), nn.ReLU()),
    )


def small(channels: int, height: int, width: int, generator: Generator = None) -> nn.Sequential:
    """At least two 3×3 convolutions, with 32 channels and then 64, that halve each side while it is 8 or longer."""
    layers: list[nn.Module] = []
    sides = (height, width)
    while len(layers) < 4 or max(sides) >= 8:
        stride = (2 if sides[0] >= 8 else 1, 2 if sides[1] >= 8 else 1)
        width_out = 64 if layers else 32
        layers += [convolution(channels, width_out, 3, generator, stride=stride, padding=1), nn.ReLU()]
        channels, sides = width_out, (-(-sides[0] // stride[0]), -(-sides[1] // stride[1]))
    return nn.Sequential(*layers)


def tiny(channels: int, height: int, width: int, generator: Generator = None) -> nn.Sequential:
    """Two 3×3 convolutions, with 16 channels and then 32. 7×7 gives 32×4×4 = 512 numbers; 12×12 the most, 1152."""
    first = (2 if height > 12 else 1, 2 if width > 12 else 1)
    second = (2 if height > 4 else 1, 2 if width > 4 else 1)
    return nn.Sequential(
        *(convolution(channels, 16, 3, generator, stride=first, padding=1), nn.ReLU()),
        *(convolution(16, 32, 3, generator, stride=second, padding=1), nn.ReLU()),
    )


def impala(channels: int, height: int, width: int, generator: Generator = None) -> nn.Sequential:
    """The deep network of Espeholt et al. 2018: fifteen convolutions in three groups, each halving the sides."""
    layers: list[nn.Module] = []
    for out in (16, 32, 32):
        layers += [convolution(channels, out, 3, generator, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(out, generator), Residual(out, generator)]
        channels = out
    return nn.Sequential(*layers, nn.ReLU())


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, generator: Generator = None) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, generator, padding=1)
        self.second = convolution(channels, channels, 3, generator, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + out


# The convolutions for (channels, height, width), and the width of the linear layer after them.
CNNS: dict[str, tuple[Callable[[int, int, int, Generator], nn.Sequential], int]] = {
    "nature": (nature, 512),
    "small": (small, 256),
    "tiny": (tiny, 64),
    "impala": (impala, 256),
}


def _scale(leaf: Leaf) -> float:
    """The divisor of an image: the largest magnitude that its space allows, if that is finite and above 1."""
    limit = float(np.finfo(leaf.dtype.name).max) if leaf.dtype.kind == "f" else math.inf
    bounds = [abs(bound) for bound in (leaf.low, leaf.high)]
    # Some spaces use the largest float to mean no bound.
    return max([1.0, *(bound for bound in bounds if bound < limit)]) if bounds[1] < limit else 1.0
