"""The state of a collector whose envs are shared by several processes.

A checkpoint has the state that one process with all envs would have, so any number of processes can continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from surefoot.schema import Misfit

if TYPE_CHECKING:
    from surefoot.engine.collecting.collector import CollectorState

PER_ENV = {  # what has one entry for each env; everything else is the same in all processes
    "tracker": ("ret", "length"),
    "reward_normalizer": ("running",),
    "envs": ("episode", "steps", "actions"),
    "last_obs": (),
    "memory": (),
    "start": (),
}


def merged(states: Sequence[CollectorState]) -> CollectorState:
    """The state of all processes, in their order."""
    return _changed(states[0], lambda *path: _joined([_at(state, path) for state in states]))


def part_of(state: CollectorState, index: int, count: int) -> CollectorState:
    """The part of process `index` of `count`."""
    return _changed(state, lambda *path: _cut(_at(state, path), index, count))


def _changed(state: CollectorState, change: Callable[..., object]) -> CollectorState:
    found: dict[str, object] = dict(cast("Mapping[str, object]", state))
    for name, names in PER_ENV.items():
        value = found.get(name)
        if isinstance(value, Mapping):
            found[name] = {**value, **{each: change(name, each) for each in names if each in value}}
        elif value is not None and not names:
            found[name] = change(name)
    return cast("CollectorState", found)


def _at(tree: object, path: Sequence[str]) -> object:
    for name in path:
        tree = cast("Mapping[str, object]", tree)[name]
    return tree


def _joined(parts: Sequence[object]) -> object:
    if isinstance(parts[0], Tensor):
        return torch.cat([cast(Tensor, part).cpu() for part in parts])
    if isinstance(parts[0], np.ndarray):
        return np.concatenate([np.asarray(part) for part in parts])
    return [item for part in parts for item in cast("Sequence[object]", part)]


def _cut(whole: object, index: int, count: int) -> object:
    if not isinstance(whole, Tensor | np.ndarray | list) or len(whole) % count:
        raise Misfit(f"the state of the envs cannot be shared by {count} processes")
    each = len(whole) // count
    return whole[each * index : each * (index + 1)]
