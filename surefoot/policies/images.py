"""CNNs for images. Nothing here works in place, because TRPO needs second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn import functional as F

from surefoot.policies.layers import convolution, linear
from surefoot.policies.plans import PLANS, POOL, Convolve, Rectify, Residue, chosen, divisor, geometry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.spaces.layout import Leaf

Generator: TypeAlias = torch.Generator | None  # draws the initial weights; None: PyTorch's global one


class Image(nn.Module):
    """A CNN for H×W, H×W×C, C×H×W or K frames of the last two; the channels of all frames are merged.

    The channel axis is the shorter of first and last, or the last if they are equal.
    """

    def __init__(self, leaf: Leaf, architecture: str, generator: Generator = None) -> None:
        super().__init__()
        self.leaf, self.scale = leaf, divisor(leaf)
        self.image_shape, self.channels_last = geometry(leaf)
        self.architecture = chosen(leaf, architecture)
        build, self.size = CNNS[self.architecture]
        self.cnn = build(*self.image_shape, generator)
        self.linear = linear(outputs_of(self.cnn, *self.image_shape[1:])[-1], self.size, generator)

    def images(self, values: Tensor) -> Tensor:
        """`[B, *leaf.shape]` as scaled float32 `[B, C, H, W]`. A channels-last frame stays so in memory."""
        x = values.movedim(-1, -3) if self.channels_last else values
        x = x.reshape(len(x), *self.image_shape)
        x = x.to(torch.float32, memory_format=torch.channels_last) if on_tensor_cores(x) else x.float()
        return x if self.scale == 1.0 else x / self.scale

    def forward(self, values: Tensor) -> Tensor:
        return F.relu(self.linear(self.cnn(self.images(values)).flatten(1)))

    def describe(self) -> str:
        order = "HW" if len(self.leaf.shape) == 2 else "HWC" if self.channels_last else "CHW"
        frames = f"{self.leaf.shape[0]} frames of " if len(self.leaf.shape) == 4 else ""
        scaling = "as it is" if self.scale == 1.0 else f"/{self.scale:g}"
        shape = "×".join(map(str, self.leaf.shape))
        return f"image {shape} ({frames}{order}, {scaling}) → {self.architecture} CNN"


def on_tensor_cores(x: Tensor) -> bool:
    """Whether convolutions round to TensorFloat-32. cuDNN's tensor cores want the channels of a pixel side by side, and
    otherwise it turns around what goes into each layer and what comes out.
    """
    return x.is_cuda and cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]


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


def build(name: str, channels: int, height: int, width: int, generator: Generator = None) -> nn.Sequential:
    """The convolutions of this plan, for images of this size."""
    layers: list[nn.Module] = []
    for layer in PLANS[name][0](height, width):
        if isinstance(layer, Convolve):
            kernel, stride, padding = layer.kernel, layer.stride, layer.padding
            layers.append(convolution(channels, layer.outputs, kernel, generator, stride=stride, padding=padding))
            channels = layer.outputs
        elif isinstance(layer, Residue):
            layers.append(Residual(channels, generator))
        else:
            layers.append(nn.ReLU() if isinstance(layer, Rectify) else nn.MaxPool2d(*POOL))
    return nn.Sequential(*layers)


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
    name: (partial(build, name), size) for name, (_, size) in PLANS.items()
}
