"""The layout of an env's observations as rows (see `rows.py`), made from a Gymnasium space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymnasium import spaces

from surefoot.spaces.of_gym import plain_space
from surefoot.spaces.rows import CHOICES, MASK, Leaf, RowLayout, part_at

if TYPE_CHECKING:
    from surefoot.types import GymSpace

__all__ = ["CHOICES", "MASK", "Layout", "Leaf", "part_at", "space_at"]


class Layout(RowLayout):
    """The position of every leaf of `space` in a row. `mask_size`: size of the action mask at its end."""

    def __init__(self, space: GymSpace, mask_size: int = 0) -> None:
        super().__init__(plain_space(space), mask_size)
        self.space = space


def space_at(space: GymSpace, path: str) -> GymSpace:
    """The simple space at a leaf's path."""
    for key in path.split("/") if path else ():
        assert isinstance(space, (spaces.Dict, spaces.Tuple))
        named = enumerate(space.spaces) if isinstance(space, spaces.Tuple) else space.spaces.items()
        space = {str(name): part for name, part in named}[key]
    return space
