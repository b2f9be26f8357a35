"""From rows of observations to features: what stands between a Layout and the MLPs of actor and critic.

Every leaf of the space has an encoder of its own, and their features stand side by side in the order of the leaves.
Nothing here works in place: TRPO differentiates the gradient once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout, Leaf

MOST_ONE_HOT = 64  # choices; beyond it an embedding is smaller
NATURE_SIDE = 36  # the smallest side that its three unpadded convolutions leave a pixel of


def needs_encoder(layout: Layout) -> bool:
    """False where the observation's numbers, flattened, are the features."""
    return any(leaf.kind not in ("vector", "binary") for leaf in layout.leaves)


class Encoder(nn.Module):
    """Rows `[..., *layout.shape]` as features `[..., size]`. An action mask in the rows is no feature.

    `image_features`: width of each CNN's last layer; none: 512 for nature, 256 for small and impala.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        image_encoder: str = "auto",
        image_features: int | None = None,
        embedding_size: int = 32,
    ) -> None:
        super().__init__()
        if not layout.leaves:
            raise UsageError("the observation has no parts, so there is nothing to encode")
        if image_encoder != "auto" and image_encoder not in CNNS:
            hint = did_you_mean(image_encoder, ["auto", *CNNS])
            raise UsageError(f"unknown image_encoder '{image_encoder}'; known: auto, {', '.join(CNNS)}{hint}")
        for name, value in (("image_features", image_features), ("embedding_size", embedding_size)):
            if value is not None and value < 1:
                raise UsageError(f"{name}={value} must be at least 1")
        self.layout = layout
        self._encoders = tuple(_build(leaf, image_encoder, image_features, embedding_size) for leaf in layout.leaves)
        self.encoders = nn.ModuleList(self._encoders)  # a list: a key of a space may be no name of a module
        self.size = sum(encoder.size for encoder in self._encoders)

    def forward(self, rows: Tensor) -> Tensor:
        flat, lead = _flat_rows(rows, self.layout)
        parts = self.layout.parts(flat)
        features = [encoder(parts[leaf.path]) for leaf, encoder in zip(self.layout.leaves, self._encoders, strict=True)]
        joined = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        return joined.reshape(*lead, self.size)

    def orthogonal(self) -> None:
        """Orthogonal weights of gain √2 and zero biases; embeddings from N(0, 1)."""
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(module.weight, math.sqrt(2.0))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight)

    def describe(self) -> list[str]:
        """A line for each leaf: what it is → what is done with it → how many features."""
        return [
            f"{_name(leaf)}: {encoder.describe()} → {encoder.size}"
            for leaf, encoder in zip(self.layout.leaves, self._encoders, strict=True)
        ]


class Flat(nn.Module):
    """Numbers as they are."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf, self.size = leaf, leaf.size

    def forward(self, values: Tensor) -> Tensor:
        return values.float().reshape(len(values), self.size)

    def describe(self) -> str:
        shape = "×".join(map(str, self.leaf.shape)) or "1"
        return f"{shape} bits → 0 or 1" if self.leaf.kind == "binary" else f"vector {shape} → as it is"


class OneHot(nn.Module):
    """A one for the choice of each component, zeros for its others."""

    component: Tensor
    choice: Tensor

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf, self.size = leaf, sum(leaf.sizes)
        # The component and the choice that each feature stands for.
        component = [i for i, n in enumerate(leaf.sizes) for _ in range(n)]
        choice = [choice for n in leaf.sizes for choice in range(n)]
        self.register_buffer("component", torch.tensor(component), persistent=False)
        self.register_buffer("choice", torch.tensor(choice), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), len(self.leaf.sizes))
        return (flat[:, self.component] == self.choice).float()

    def describe(self) -> str:
        return f"{_choices(self.leaf)} → one-hot"


class Embedded(nn.Module):
    """A learned vector for each choice of each component: their tables stand one below the other in a single one."""

    offset: Tensor

    def __init__(self, leaf: Leaf, embedding_size: int) -> None:
        super().__init__()
        self.leaf, self.size = leaf, len(leaf.sizes) * embedding_size
        self.table = nn.Embedding(sum(leaf.sizes), embedding_size)
        self.register_buffer("offset", torch.tensor([0, *accumulate(leaf.sizes[:-1])]), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), len(self.leaf.sizes)).long()
        vectors: Tensor = self.table(flat + self.offset)  # [B, components, embedding_size]
        return vectors.reshape(len(values), self.size)

    def describe(self) -> str:
        return f"{_choices(self.leaf)} → embedding"


class Image(nn.Module):
    """A CNN for H×W, H×W×C, C×H×W or K frames of the last two; the channels of all frames are merged.

    The channel axis is the shorter of first and last; of equal ones the last.
    """

    def __init__(self, leaf: Leaf, architecture: str, features: int | None) -> None:
        super().__init__()
        self.leaf, self.scale = leaf, _scale(leaf)
        rank = len(leaf.shape)
        if rank not in (2, 3, 4):
            raise UsageError(f"{_name(leaf)} has the shape {leaf.shape}; images have two to four axes")
        self.channels_last = rank > 2 and leaf.shape[-1] <= leaf.shape[-3]
        if self.channels_last:
            height, width, channels = leaf.shape[-3:]
        else:
            channels, (height, width) = leaf.shape[-3] if rank > 2 else 1, leaf.shape[-2:]
        self.image_shape = (channels * (leaf.shape[0] if rank == 4 else 1), height, width)
        if architecture == "auto":
            architecture = "nature" if min(height, width) >= NATURE_SIDE else "small"
        elif architecture == "nature" and min(height, width) < NATURE_SIDE:
            raise UsageError(
                f"image_encoder=nature needs images of at least {NATURE_SIDE}×{NATURE_SIDE}, but {_name(leaf)} is "
                f"{height}×{width}; use auto, small or impala"
            )
        self.architecture, (build, default) = architecture, CNNS[architecture]
        self.size = default if features is None else features
        self.cnn = build(*self.image_shape)
        with torch.no_grad():
            numbers = self.cnn(torch.zeros(1, *self.image_shape)).numel()
        self.linear = nn.Linear(numbers, self.size)

    def images(self, values: Tensor) -> Tensor:
        """`[B, *leaf.shape]` as scaled float32 `[B, C, H, W]`. Last channels of a single frame stay last in memory."""
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


def nature(channels: int, height: int, width: int) -> nn.Sequential:
    """Mnih et al. 2015. 84×84 leaves 64×7×7 = 3136 numbers."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
    )


def small(channels: int, height: int, width: int) -> nn.Sequential:
    """At least two 3×3 convolutions, 32 channels and then 64, that halve each side while it is 8 or longer."""
    layers: list[nn.Module] = []
    sides = (height, width)
    while len(layers) < 4 or max(sides) >= 8:
        stride = (2 if sides[0] >= 8 else 1, 2 if sides[1] >= 8 else 1)
        width_out = 64 if layers else 32
        layers += [nn.Conv2d(channels, width_out, 3, stride=stride, padding=1), nn.ReLU()]
        channels, sides = width_out, (-(-sides[0] // stride[0]), -(-sides[1] // stride[1]))
    return nn.Sequential(*layers)


def impala(channels: int, height: int, width: int) -> nn.Sequential:
    """The deep network of Espeholt et al. 2018: fifteen convolutions; each third of them halves the sides."""
    layers: list[nn.Module] = []
    for out in (16, 32, 32):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(out), Residual(out)]
        channels = out
    return nn.Sequential(*layers, nn.ReLU())


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + out


# The convolutions for (channels, height, width), and the width of the linear layer after them.
CNNS: dict[str, tuple[Callable[[int, int, int], nn.Sequential], int]] = {
    "nature": (nature, 512),
    "small": (small, 256),
    "impala": (impala, 256),
}


class UserEncoder(Protocol):
    """An encoder of the user's own: an `nn.Module` whose class is called with the Layout.

    `parts` maps each leaf's path to its values `[B, *leaf.shape]`: float32, choices as whole numbers from 0; a single
    Box of whole numbers (an image) keeps its dtype. The path of a space that is no Dict or Tuple is "".
    """

    size: int  # features

    def __call__(self, parts: dict[str, Tensor]) -> Tensor:
        """Features `[B, size]`, float32."""


class CustomEncoder(nn.Module):
    """A `UserEncoder` in the place of an `Encoder`, tried on two rows of zeros first. Its init is its own."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        name = type(module).__name__
        if not isinstance(module, nn.Module):
            raise UsageError(f"the encoder {name} must be a torch.nn.Module")
        size = getattr(module, "size", None)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"the encoder {name} must say how many features it gives: size, an int ≥ 1, not {size!r}")
        self.module, self.layout, self.size = module, layout, size
        self._try(name)

    def _try(self, name: str) -> None:
        rows = torch.from_numpy(np.zeros((2, *self.layout.shape), self.layout.dtype))
        modes = {module: module.training for module in self.module.modules()}
        self.module.eval()  # zeros are not to count in a batch norm
        try:
            with torch.no_grad():
                features = self.module(self.layout.parts(rows))
        except Exception as error:
            paths = ", ".join(f"'{leaf.path}' {leaf.shape}" for leaf in self.layout.leaves)
            raise UsageError(
                f"the encoder {name} failed on two observations of zeros with {type(error).__name__}: {error}. "
                f"Its forward takes a dict with one batch for each of: {paths}"
            ) from error
        finally:
            for module, training in modes.items():
                module.training = training
        if not isinstance(features, Tensor):
            raise UsageError(f"the encoder {name} must return a tensor, not {type(features).__name__}")
        if features.shape != (2, self.size):
            raise UsageError(
                f"the encoder {name} says size={self.size}, so 2 observations must give the shape (2, {self.size}); "
                f"they gave {tuple(features.shape)}"
            )
        if features.dtype != torch.float32:
            raise UsageError(f"the encoder {name} must return torch.float32, not {features.dtype}")

    def forward(self, rows: Tensor) -> Tensor:
        flat, lead = _flat_rows(rows, self.layout)
        features: Tensor = self.module(self.layout.parts(flat))
        return features.reshape(*lead, self.size)

    def orthogonal(self) -> None:
        """Nothing: the module's class has chosen its weights."""

    def describe(self) -> list[str]:
        names = ", ".join(_name(leaf) for leaf in self.layout.leaves)
        return [f"{names}: {type(self.module).__name__} → {self.size}"]


def _build(
    leaf: Leaf, image_encoder: str, image_features: int | None, embedding_size: int
) -> Flat | OneHot | Embedded | Image:
    if leaf.kind == "image":
        return Image(leaf, image_encoder, image_features)
    if leaf.kind in ("discrete", "multi_discrete"):
        return OneHot(leaf) if max(leaf.sizes) <= MOST_ONE_HOT else Embedded(leaf, embedding_size)
    return Flat(leaf)


def _flat_rows(rows: Tensor, layout: Layout) -> tuple[Tensor, tuple[int, ...]]:
    """Rows with one leading dimension, and the leading dimensions that they had."""
    at = rows.ndim - len(layout.shape)
    if at < 0 or tuple(rows.shape[at:]) != layout.shape:
        # reshape would take whatever divides
        raise ValueError(f"rows of shape {tuple(rows.shape)} do not end in {layout.shape}")
    return rows.reshape(-1, *layout.shape), tuple(rows.shape[:at])


def _scale(leaf: Leaf) -> float:
    """What an image is divided by: the largest magnitude that its space allows, where that is finite and above 1."""
    limit = float(np.finfo(leaf.dtype).max) if leaf.dtype.kind == "f" else math.inf
    bounds = [abs(bound) for bound in (leaf.low, leaf.high)]
    # The largest float is how some spaces say that they have no bound.
    return max([1.0, *(bound for bound in bounds if bound < limit)]) if bounds[1] < limit else 1.0


def _name(leaf: Leaf) -> str:
    return leaf.path or "observation"


def _choices(leaf: Leaf) -> str:
    """`one of 10`, `3 × one of 10`, or `one of each of 2, 3, 4`."""
    if leaf.kind == "discrete":
        return f"one of {leaf.sizes[0]}"
    if len(set(leaf.sizes)) == 1:
        return f"{len(leaf.sizes)} × one of {leaf.sizes[0]}"
    shown = ", ".join(map(str, leaf.sizes[:6])) + (", …" if len(leaf.sizes) > 6 else "")
    return f"one of each of {shown}"
