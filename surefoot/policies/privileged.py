"""An asymmetric critic: parts of the observation that only the critic sees (`critic_obs`).

Learning then uses what a simulator knows, and the actor needs only what it will have where it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from surefoot.errors import UsageError, did_you_mean
from surefoot.spaces import plain
from surefoot.spaces.rows import MASK

if TYPE_CHECKING:
    from surefoot.spaces.rows import Leaf, RowLayout


def divided(layout: RowLayout, critic_obs: Sequence[str]) -> tuple[tuple[Leaf, ...], tuple[Leaf, ...]]:
    """(the leaves that the actor sees, those that only the critic sees). A name stands for all leaves below it."""
    if layout.plain or not layout.leaves[0].path:
        raise UsageError(
            f"critic_obs names parts of a Dict observation, but this env shows {layout.tree}; drop it, or let the env "
            "return a Dict with what the actor sees and what only the critic sees"
        )
    known = list(dict.fromkeys(name for leaf in layout.leaves for name in _names(leaf)))
    for name in critic_obs:
        if name not in known:
            raise UsageError(
                f"critic_obs names '{name}', which is not a part of the observation{did_you_mean(name, known)} "
                f"(its parts: {', '.join(known)})"
            )
    hidden = tuple(leaf for leaf in layout.leaves if any(name in critic_obs for name in _names(leaf)))
    seen = tuple(leaf for leaf in layout.leaves if leaf not in hidden)
    if not seen:
        raise UsageError("critic_obs names every part of the observation, so the actor would see nothing; leave one")
    return seen, hidden


def seen_space(space: plain.Space, paths: Collection[str], at: str = "") -> plain.Space | None:
    """The space without the leaves that are not at these paths; None if nothing is left.

    A Tuple stays whole as long as it has one of them: its parts are known by their position. So does an action mask.
    """
    below = f"{at}/" if at else ""
    if isinstance(space, plain.Dict):
        parts = {
            key: part if below + key == MASK else seen_space(part, paths, below + key)
            for key, part in space.spaces.items()
        }
        kept = {key: part for key, part in parts.items() if part is not None}
        return plain.Dict(kept) if kept else None
    return space if at in paths or any(path.startswith(below) for path in paths if below) else None


def _names(leaf: Leaf) -> list[str]:
    """`robot`, `robot/arm` for the leaf `robot/arm`."""
    keys = leaf.path.split("/")
    return ["/".join(keys[: at + 1]) for at in range(len(keys))]
