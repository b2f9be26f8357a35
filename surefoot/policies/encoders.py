"""Encodes rows of observations as features for the MLPs of actor and critic.

Every leaf of the space has its own encoder, and their features are concatenated in the order of the leaves. Nothing
here works in place, because TRPO needs second derivatives.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surefoot.errors import UsageError, did_you_mean
from surefoot.policies.images import CNNS, Image
from surefoot.policies.layers import embedding
from surefoot.policies.plans import is_embedded

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout, Leaf


class Encoder(nn.Module):
    """Rows `[..., *layout.shape]` as features `[..., size]`. An action mask in the rows is not a feature."""

    def __init__(
        self,
        layout: Layout,
        *,
        image_encoder: str = "by-size",
        embedding_size: int = 32,
        generator: torch.Generator | None = None,
        leaves: tuple[Leaf, ...] | None = None,
    ) -> None:
        """`leaves`: those to encode, in this order; None: all of the layout."""
        super().__init__()
        if not layout.leaves:
            raise UsageError("the observation has no parts, so there is nothing to encode")
        if image_encoder not in ("by-size", "auto", *CNNS):
            hint = did_you_mean(image_encoder, ["by-size", *CNNS])
            raise UsageError(f"unknown image_encoder '{image_encoder}'; known: by-size, {', '.join(CNNS)}{hint}")
        if embedding_size < 1:
            raise UsageError(f"embedding_size={embedding_size} must be at least 1")
        self.layout, self.leaves = layout, layout.leaves if leaves is None else leaves
        self._encoders = tuple(_build(leaf, image_encoder, embedding_size, generator) for leaf in self.leaves)
        self.encoders = nn.ModuleList(self._encoders)  # a list, because a space's key may be invalid as a module name
        self.size = sum(encoder.size for encoder in self._encoders)

    def forward(self, rows: Tensor) -> Tensor:
        flat, lead = flat_rows(rows, self.layout)
        parts = self.layout.parts(flat)
        features = [encoder(parts[leaf.path]) for leaf, encoder in zip(self.leaves, self._encoders, strict=True)]
        joined = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        return joined.reshape(*lead, self.size)

    def orthogonal(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal weights with gain √2 and zero biases; embeddings from N(0, 1)."""
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.orthogonal_(module.weight, math.sqrt(2.0), generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)

    def describe(self) -> list[str]:
        """A line per leaf: what it is → how it is encoded → how many features."""
        return [
            f"{leaf.name}: {encoder.describe()} → {encoder.size}"
            for leaf, encoder in zip(self.leaves, self._encoders, strict=True)
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
    """One-hot encoding of each component."""

    component: Tensor
    choice: Tensor

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf, self.size = leaf, sum(leaf.sizes)
        # The component and the choice of each feature.
        component = [i for i, n in enumerate(leaf.sizes) for _ in range(n)]
        choice = [choice for n in leaf.sizes for choice in range(n)]
        self.register_buffer("component", _whole(component), persistent=False)
        self.register_buffer("choice", _whole(choice), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), len(self.leaf.sizes))
        return (flat[:, self.component] == self.choice).float()

    def describe(self) -> str:
        return f"{_choices(self.leaf)} → one-hot"


class Embedded(nn.Module):
    """A learned vector for each choice of each component. All tables are stacked into one."""

    offset: Tensor
    most: Tensor

    def __init__(self, leaf: Leaf, embedding_size: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.leaf, self.size = leaf, len(leaf.sizes) * embedding_size
        self.table = embedding(sum(leaf.sizes), embedding_size, generator)
        self.register_buffer("offset", _whole([0, *accumulate(leaf.sizes[:-1])]), persistent=False)
        self.register_buffer("most", _whole([size - 1 for size in leaf.sizes]), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        flat = values.reshape(len(values), len(self.leaf.sizes)).long()
        # Tensor envs are checked only after a rollout; until then, an invalid choice must not crash.
        flat = flat.clamp(min=0).minimum(self.most)
        vectors: Tensor = self.table(flat + self.offset)  # [B, components, embedding_size]
        return vectors.reshape(len(values), self.size)

    def describe(self) -> str:
        return f"{_choices(self.leaf)} → embedding"


def _build(
    leaf: Leaf, image_encoder: str, embedding_size: int, generator: torch.Generator | None
) -> Flat | OneHot | Embedded | Image:
    if leaf.kind == "image":
        return Image(leaf, image_encoder, generator)
    if leaf.kind in ("discrete", "multi_discrete"):
        return Embedded(leaf, embedding_size, generator) if is_embedded(leaf) else OneHot(leaf)
    return Flat(leaf)


def _whole(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def flat_rows(rows: Tensor, layout: Layout) -> tuple[Tensor, tuple[int, ...]]:
    """Rows with one leading dimension, and their original leading dimensions."""
    at = rows.ndim - len(layout.shape)
    if at < 0 or tuple(rows.shape[at:]) != layout.shape:
        # reshape would accept any size that divides
        raise ValueError(f"rows of shape {tuple(rows.shape)} do not end in {layout.shape}")
    return rows.reshape(-1, *layout.shape), tuple(rows.shape[:at])


def _choices(leaf: Leaf) -> str:
    """`one of 10`, `3 × one of 10`, or `one of each of 2, 3, 4`."""
    if leaf.kind == "discrete":
        return f"one of {leaf.sizes[0]}"
    if len(set(leaf.sizes)) == 1:
        return f"{len(leaf.sizes)} × one of {leaf.sizes[0]}"
    shown = ", ".join(map(str, leaf.sizes[:6])) + (", …" if len(leaf.sizes) > 6 else "")
    return f"one of each of {shown}"
