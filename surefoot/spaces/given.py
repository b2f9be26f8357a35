"""What `agent.predict` is given (observations, masks, a memory), as rows of the policy's layout. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import UsageError
from surefoot.spaces.rows import CHOICES

if TYPE_CHECKING:
    from surefoot.spaces.masks import ActionMasks
    from surefoot.spaces.rows import RowLayout
    from surefoot.types import Array

NUMBERS = "fiub"  # kinds of NumPy's dtypes
NO_NUMBERS = (ValueError, KeyError, IndexError, TypeError, OverflowError)  # what values that do not fit raise


def given_rows(
    layout: RowLayout, masks: ActionMasks, observation: object, given: Iterable[object] | None
) -> tuple[Array, bool]:
    """(rows, whether it was a single observation). `given`: the action masks. UsageError if they do not fit."""
    if given is not None and (not layout.mask_size or layout.mask_in_obs):
        why = "is a part of its observations" if layout.mask_in_obs else "was not used to train this policy"
        raise UsageError(f"an action mask {why}; drop action_masks")
    try:
        if layout.plain:
            rows, single = _plain_rows(layout, observation)
        else:
            count = layout.count(observation)
            single = count is None
            flat = _free(layout, count) if given is None else _flat_masks(masks, given, count)
            with np.errstate(over="ignore"):  # infinite in float32, which the policy's outputs show
                if count is None:
                    rows = layout.pack(observation, flat)[None]
                else:
                    rows = layout.pack_batch(observation, count, flat)
        _check_integers(layout, rows)
    except NO_NUMBERS as error:
        raise UsageError(f"the observation does not fit the policy's space {layout.tree}: {error}") from None
    return rows, single


def _plain_rows(layout: RowLayout, observation: object) -> tuple[Array, bool]:
    obs = np.array(observation)  # a copy: PyTorch takes neither read-only arrays nor negative strides
    single = obs.shape == layout.shape
    if not single and obs.shape[1:] != layout.shape:
        raise UsageError(f"observation of shape {obs.shape}; the policy expects {layout.shape} or a batch of it")
    if obs.dtype.kind not in NUMBERS:
        raise UsageError("an observation must be made of numbers")
    return obs[None] if single else obs, single


def _check_integers(layout: RowLayout, rows: Array) -> None:
    """ValueError for numbers that a Box of integers, such as an image, does not have."""
    for leaf in layout.leaves:
        if leaf.dtype.kind == "f" or leaf.kind in CHOICES or not len(rows):
            continue
        numbers = rows if layout.plain else rows[:, leaf.span]
        low, high = np.array([leaf.low, leaf.high], np.promote_types(rows.dtype, np.float32))
        whole = rows.dtype.kind != "f" or (numbers == np.floor(numbers)).all()
        if not (whole and numbers.min() >= low and numbers.max() <= high):
            raise ValueError(f"{leaf.name} has numbers other than whole ones from {leaf.low:.0f} to {leaf.high:.0f}")


def _flat_masks(masks: ActionMasks, given: Iterable[object], count: int | None) -> Array:
    """`[count, choices]`, or `[choices]` for None. One mask is not used for several observations."""
    try:
        flat = [masks.flat(given)] if count is None else [masks.flat(mask) for mask in given]
    except NO_NUMBERS as error:
        raise UsageError(f"not an action mask of this policy: {error}") from None
    if count is None:
        return flat[0]
    if len(flat) != count:
        raise UsageError(f"{len(flat)} action masks for {count} observations")
    return np.stack(flat)


def given_memory(state: Array | None, episode_start: object, count: int, size: int) -> Array:
    """`[count, size]`: the memory of the last call, empty where an episode starts."""
    if state is None:
        return np.zeros((count, size), np.float32)
    try:
        memory = np.array(state, np.float32)
    except NO_NUMBERS:
        raise UsageError("the state is not made of numbers; pass what the last call returned") from None
    if memory.size != count * size:
        raise UsageError(f"state of shape {memory.shape}; the policy expects {size} numbers for each observation")
    memory = memory.reshape(count, size)
    if episode_start is not None:
        memory[given_starts(episode_start, count)] = 0.0
    return memory


def given_starts(episode_start: object, count: int) -> Array:
    """`[count]` booleans: where an episode starts."""
    try:
        return np.broadcast_to(np.asarray(episode_start, np.bool_), (count,))
    except NO_NUMBERS:
        raise UsageError(f"episode_start is one truth value, or one for each of the {count} observations") from None


def _free(layout: RowLayout, count: int | None) -> Array | None:
    """Without a mask, every action is legal, unless the observation contains a mask."""
    if not layout.mask_size or layout.mask_in_obs:
        return None
    return np.ones(layout.mask_size if count is None else (count, layout.mask_size), np.bool_)
