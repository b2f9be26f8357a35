"""The shared memory: counts of every env, followed by observations, rewards and actions once the spaces are known."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout
    from surefoot.types import Actions, Array, GymSpace

IDLE, STEPPING, RESETTING = 0, 1, 2  # what a worker is doing with an env
COUNTS = 3  # numbers per env: episode, step, one of the above

Field = tuple[str, tuple[int, ...], str]  # name, shape, dtype
Path = tuple[str | int, ...]  # keys from an action to one of its parts


def counts_field(num_envs: int) -> Field:
    return ("counts", (num_envs, COUNTS), "<i8")


def all_fields(layout: Layout, action_space: GymSpace, num_envs: int) -> list[Field]:
    rows = layout.space.dtype if layout.plain else layout.dtype
    row = ((num_envs, *layout.shape), np.dtype(rows).str)
    flags = [(name, (num_envs,), "|b1") for name in ("terminated", "truncated", "life_lost", "active", "has_final")]
    actions = [
        (f"action{k}", (num_envs, *(part.shape or ())), np.dtype(part.dtype).str)
        for k, (_, part) in enumerate(action_parts(action_space))
    ]
    return [counts_field(num_envs), ("obs", *row), ("final", *row), ("reward", (num_envs,), "<f8"), *flags, *actions]


def map_fields(fd: int, fields: Sequence[Field], *, create: bool = False) -> dict[str, Array]:
    """The arrays of a block. They keep the mapping alive until the last one is freed."""
    places, size = [], 0
    for _, shape, dtype in fields:
        places.append(size)
        size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 64) * 64
    if create:
        os.ftruncate(fd, max(size, os.fstat(fd).st_size))  # never less: others have mapped it
    memory = mmap.mmap(fd, size)
    return {
        name: np.ndarray(shape, np.dtype(dtype), memory, place)
        for (name, shape, dtype), place in zip(fields, places, strict=True)
    }


def action_parts(space: GymSpace, path: Path = ()) -> Iterator[tuple[Path, GymSpace]]:
    """(path in the action, simple space at that path), depth first."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in inner:
            yield from action_parts(part, (*path, key))
    else:
        yield path, space


def write_actions(places: Sequence[tuple[Path, Array]], action: Actions) -> None:
    """Copy the actions of all envs into shared memory. Refuses other shapes, and fractions instead of integers."""
    for path, array in places:
        value = np.asarray([_part_at(one, path) for one in action] if path else action)
        if value.shape != array.shape:
            raise UsageError(f"the actions have the shape {value.shape}; the envs take {array.shape}")
        np.copyto(array, value, casting="unsafe" if value.dtype.kind in "iub" else "same_kind")


def _part_at(action: Any, path: Path) -> object:
    for key in path:
        action = action[key]
    return action


def read_actions(space: GymSpace, arrays: Sequence[Array]) -> Actions:
    """The actions in the policy's usual form. Copies, because an env may keep what it gets."""
    parts = [array.copy() for array in arrays]
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return parts[0]
    return [_join(space, iter(parts), index) for index in range(len(parts[0]))]


def _join(space: GymSpace, parts: Iterator[Array], index: int) -> object:
    if isinstance(space, spaces.Dict):
        return {key: _join(part, parts, index) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_join(part, parts, index) for part in space.spaces)
    array = next(parts)
    return array[index] if isinstance(space, spaces.Discrete) else array[index, ...]
