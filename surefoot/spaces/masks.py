"""Which discrete actions are legal, as one row of booleans in the order of the policy's logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from surefoot.spaces import plain

if TYPE_CHECKING:
    from surefoot.types import Array, GymSpace


def choices(space: GymSpace | plain.Space) -> tuple[int, ...]:
    """Sizes of the discrete components of an action space that can be masked, depth first."""
    space = plain.as_plain(space)
    if isinstance(space, plain.Discrete):
        return (space.n,)
    if isinstance(space, plain.MultiDiscrete):
        return tuple(int(n) for n in space.nvec.reshape(-1))
    if isinstance(space, plain.Dict):
        return tuple(n for part in space.spaces.values() for n in choices(part))
    if isinstance(space, plain.Tuple):
        return tuple(n for part in space.spaces for n in choices(part))
    return ()


class ActionMasks:
    """Masks of one action space; `size` is 0 if there is nothing to mask."""

    def __init__(self, space: GymSpace | plain.Space) -> None:
        self.space = plain.as_plain(space)
        self.sizes = choices(self.space)
        self.size = sum(self.sizes)
        self._offsets = np.cumsum((0, *self.sizes[:-1])) if self.sizes else np.zeros(0, np.int64)

    def flat(self, mask: object) -> Array:
        """`[size]` booleans from an env's mask: one flat array, or the space's own structure.

        ValueError if the size is wrong, or if a component has no legal action left.
        """
        row = _flatten(self.space, mask)
        legal = np.logical_or.reduceat(row, self._offsets)
        if not legal.all():
            which = "" if len(self.sizes) == 1 else f" for component {int(np.argmin(legal))}"
            raise ValueError(f"the action mask leaves no legal action{which}")
        return row


def _flatten(space: plain.Space, mask: object) -> Array:
    """Flatten a mask; None stands for a part in which everything is legal."""
    size = sum(choices(space))
    if mask is None:
        return np.ones(size, np.bool_)
    if isinstance(space, plain.Dict) and isinstance(mask, Mapping):
        if unknown := set(mask) - set(space.spaces):
            known = list(space.spaces)
            raise ValueError(f"the action mask has {sorted(map(str, unknown))}; the action space has {known}")
        return np.concatenate([_flatten(part, mask.get(key)) for key, part in space.spaces.items()])
    parts: tuple[plain.Space, ...] = ()
    if isinstance(space, plain.Tuple):
        parts = space.spaces
    elif isinstance(space, plain.MultiDiscrete):
        parts = tuple(plain.Discrete(n, 0, space.dtype) for n in choices(space))
    if parts and isinstance(mask, (tuple, list)) and any(piece is None or np.ndim(piece) for piece in mask):
        pieces = list(_pieces(mask)) if isinstance(space, plain.MultiDiscrete) else list(mask)
        if len(pieces) != len(parts):
            raise ValueError(f"the action mask has {len(pieces)} parts; the action space has {len(parts)}")
        return np.concatenate([_flatten(part, piece) for part, piece in zip(parts, pieces, strict=True)])
    if isinstance(mask, Mapping):
        raise ValueError(f"the action mask is a {type(mask).__name__}; it must be flat, or have the form of {space}")
    row = np.asarray(mask).reshape(-1)
    if row.size != size:
        raise ValueError(f"the action mask has {row.size} entries; {size} choices are expected")
    if not ((row == 0) | (row == 1)).all():
        raise ValueError("the action mask has entries other than 0 and 1")
    return row.astype(np.bool_)


def _pieces(mask: Iterable[object]) -> Iterator[object]:
    """The innermost arrays of nested sequences."""
    for piece in mask:
        if isinstance(piece, (tuple, list)) and any(np.ndim(inner) for inner in piece):
            yield from _pieces(piece)
        else:
            yield piece
