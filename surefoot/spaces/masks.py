"""Which discrete actions are legal, as one row of booleans in the order of the policy's logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from surefoot.types import Array


def choices(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Sizes of the discrete components of an action space that can be masked, depth first."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    if isinstance(space, spaces.Dict):
        return tuple(n for part in space.spaces.values() for n in choices(part))
    if isinstance(space, spaces.Tuple):
        return tuple(n for part in space.spaces for n in choices(part))
    return ()


class ActionMasks:
    """Masks of one action space; `size` is 0 where there is nothing to mask."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space, self.sizes = space, choices(space)
        self.size = sum(self.sizes)
        self._offsets = np.cumsum((0, *self.sizes[:-1])) if self.sizes else np.zeros(0, np.int64)

    def flat(self, mask: Any) -> Array:
        """`[size]` booleans from whatever an env hands out: one flat array, or the space's own structure.

        ValueError where the size is wrong, or a component has no legal action left.
        """
        row = _flatten(self.space, mask)
        if row.shape != (self.size,):
            raise ValueError(f"the action mask has {row.size} entries; the action space has {self.size} choices")
        legal = np.logical_or.reduceat(row, self._offsets)
        if not legal.all():
            which = "" if len(self.sizes) == 1 else f" for component {int(np.argmin(legal))}"
            raise ValueError(f"the action mask leaves no legal action{which}")
        return row


def _flatten(space: spaces.Space[Any], mask: Any) -> Array:
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        parts = [(part, mask.get(key)) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple) and isinstance(mask, (tuple, list)) and len(mask) == len(space.spaces):
        parts = list(zip(space.spaces, mask, strict=True))
    else:
        pieces = mask if isinstance(mask, (tuple, list)) else [mask]
        return np.concatenate([np.asarray(piece).reshape(-1) for piece in pieces]).astype(np.bool_)
    # A part without a mask of its own is free.
    rows = [np.ones(sum(choices(p)), np.bool_) if m is None else _flatten(p, m) for p, m in parts if choices(p)]
    return np.concatenate(rows) if rows else np.zeros(0, np.bool_)
