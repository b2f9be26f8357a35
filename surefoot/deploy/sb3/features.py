"""Where each feature of our networks comes from in a network of Stable-Baselines3.

Both encode the parts of an observation and put the features side by side, but not always in the same order or width.
Features that only we have are zero or have zero weights, so the function is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.policies.plans import PLANS, divisor, geometry, is_embedded
from surefoot.schema import Misfit
from surefoot.spaces.rows import MASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.deploy.sb3.archive import SavedModel
    from surefoot.spaces.rows import Leaf, RowLayout
    from surefoot.types import Array, GymSpace

NATURE = PLANS["nature"][1]  # features
CONVOLUTIONS = (0, 2, 4)  # their places in NatureCNN and in ours
LARGEST_TABLE = 2**24  # numbers of an embedding


@dataclass(frozen=True)
class Features:
    """The features before the MLPs (or the LSTM)."""

    width: int  # how many they have
    source: Array  # [ours]: the number of theirs; −1 if there is none
    encoder: Mapping[str, Array]  # weights of our encoder, by name


def gather(weight: Array, source: Array) -> Array:
    """`[outputs, theirs]` → `[outputs, ours]`."""
    out = np.zeros((len(weight), len(source)), np.float32)
    out[:, source >= 0] = weight[:, source[source >= 0]]
    return out


class FeatureReader:
    """Reads the features extractors of a model. `theirs`: its observation space; `layout`: ours."""

    def __init__(self, model: SavedModel, theirs: GymSpace, layout: RowLayout, *, divided: bool) -> None:
        """`divided`: whether the model divides images of bytes by 255."""
        self.model, self.layout, self.divided = model, layout, divided
        self.parts = dict(theirs.spaces) if isinstance(theirs, spaces.Dict) else {"": theirs}
        if MASK in self.parts:
            raise UsageError(f"it sees the {MASK} as a part of the observation, which no network here does")
        embedded = [leaf for leaf in layout.leaves if leaf.kind.endswith("discrete") and is_embedded(leaf)]
        self.embedding_size = max((max(leaf.sizes) for leaf in embedded), default=None)
        if self.embedding_size and any(sum(leaf.sizes) * self.embedding_size > LARGEST_TABLE for leaf in embedded):
            raise UsageError("its observations have too many choices to be imported")

    def read(self, extractor: str) -> Features:
        """`extractor`: the name of its weights, such as `features_extractor`."""
        widths = {key: self._width(key, self._name(extractor, key)) for key in self.parts}
        first = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
        source: list[Array] = []
        encoder: dict[str, Array] = {}
        for number, leaf in enumerate(self.layout.leaves):
            own = f"encoders.{number}"
            begin, end = first[leaf.path], first[leaf.path] + widths[leaf.path]
            if leaf.kind == "image":
                encoder |= self._cnn(leaf, self._name(extractor, leaf.path), own, end - begin)
                source.append(_padded(begin, end, NATURE))
            elif leaf.kind.endswith("discrete") and is_embedded(leaf):
                encoder[f"{own}.table.weight"] = self._table(leaf)
                ends = [begin + size for size in accumulate(leaf.sizes, initial=0)]
                assert self.embedding_size is not None
                source += [_padded(a, b, self.embedding_size) for a, b in pairwise(ends)]
            else:
                source.append(np.arange(begin, end))
        return Features(sum(widths.values()), np.concatenate(source), encoder)

    def _name(self, extractor: str, key: str) -> str:
        return f"{extractor}.extractors.{key}" if key else extractor

    def _width(self, key: str, name: str) -> int:
        if f"{name}.linear.0.weight" in self.model.shapes:
            return self.model.shapes[f"{name}.linear.0.weight"][0]
        space = self.parts[key]
        leaf = next(leaf for leaf in self.layout.leaves if leaf.path == key)
        if leaf.kind == "image":
            raise UsageError(f"it flattens {space}, which is an image here and goes through a CNN")
        if isinstance(space, spaces.Discrete):
            return int(space.n)
        if isinstance(space, spaces.MultiDiscrete):
            return int(space.nvec.sum())
        return math.prod(space.shape or ())

    def _cnn(self, leaf: Leaf, name: str, own: str, features: int) -> dict[str, Array]:
        """NatureCNN; its last layer may be narrower than ours."""
        space, (shape, _) = self.parts[leaf.path], geometry(leaf)
        if space.shape != shape:
            raise UsageError(f"its images are {space.shape}, channels first, and would be taken for {shape} here")
        if features > NATURE:
            raise UsageError(f"its CNN has {features} features; ours has {NATURE}")
        found: dict[str, Array] = {}
        for at in CONVOLUTIONS:
            expected = self.model.shapes.get(f"{name}.cnn.{at}.weight")
            if expected is None:
                raise Misfit(f"{name}.cnn.{at}.weight is missing")
            found[f"{own}.cnn.{at}.weight"] = self.model.weights.take(f"{name}.cnn.{at}.weight", expected)
            found[f"{own}.cnn.{at}.bias"] = self.model.weights.take(f"{name}.cnn.{at}.bias", expected[:1])
        # Not in place: the weights of actor and critic may be one array.
        factor = np.float32(divisor(leaf) / (255.0 if self._is_divided(space) else 1.0))
        found[f"{own}.cnn.0.weight"] = found[f"{own}.cnn.0.weight"] * factor
        inputs = self.model.shapes[f"{name}.linear.0.weight"][1:]
        weight = self.model.weights.take(f"{name}.linear.0.weight", (features, *inputs))
        bias = self.model.weights.take(f"{name}.linear.0.bias", (features,))
        found[f"{own}.linear.weight"] = np.pad(weight, ((0, NATURE - features), (0, 0)))
        found[f"{own}.linear.bias"] = np.pad(bias, (0, NATURE - features))
        return found

    def _is_divided(self, space: GymSpace) -> bool:
        """Their test of what is an image of bytes."""
        if not self.divided or not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            return False
        return bool((space.low == 0).all() and (space.high == 255).all())

    def _table(self, leaf: Leaf) -> Array:
        """One-hot vectors: an embedding that the first layer can read like theirs."""
        assert self.embedding_size is not None
        table = np.zeros((sum(leaf.sizes), self.embedding_size), np.float32)
        table[np.arange(len(table)), np.concatenate([np.arange(size) for size in leaf.sizes])] = 1.0
        return table


def _padded(begin: int, end: int, width: int) -> Array:
    return np.concatenate([np.arange(begin, end), np.full(width - (end - begin), -1)])
