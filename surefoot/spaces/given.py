"""What `agent.predict` is given (observations, masks, a memory), as rows of the policy's layout. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.spaces.masks import ActionMasks
    from surefoot.spaces.rows import RowLayout
    from surefoot.types import Array


def given_rows(
    layout: RowLayout, masks: ActionMasks, observation: object, given: Iterable[object] | None
) -> tuple[Array, bool]:
    """(rows, whether it was a single observation). `given`: the action masks."""
    if layout.plain:
        obs = np.array(observation)  # a copy: PyTorch takes neither read-only arrays nor negative strides
        if obs.shape == layout.shape:
            return obs[None], True
        if obs.shape[1:] != layout.shape:
            raise UsageError(f"observation of shape {obs.shape}; the policy expects {layout.shape} or a batch of it")
        return obs, False
    try:
        count = layout.count(observation)
        if count is None:
            flat = _free(layout, None) if given is None else masks.flat(given)
            return layout.pack(observation, flat)[None], True
        flat = _free(layout, count) if given is None else np.stack([masks.flat(mask) for mask in given])
        return layout.pack_batch(observation, count, flat), False
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"the observation does not fit the policy's space {layout.tree}: {error}") from None


def given_memory(state: Array | None, episode_start: object, count: int, size: int) -> Array:
    """`[count, size]`: the memory of the last call, empty where an episode starts."""
    if state is None:
        return np.zeros((count, size), np.float32)
    memory = np.array(state, np.float32).reshape(count, -1)
    if memory.shape[1] != size:
        raise UsageError(f"state of shape {np.shape(state)}; the policy expects {size} numbers for each observation")
    if episode_start is not None:
        memory[np.broadcast_to(np.asarray(episode_start, np.bool_), (count,))] = 0.0
    return memory


def _free(layout: RowLayout, count: int | None) -> Array | None:
    """Without a mask, every action is legal, unless the observation contains a mask."""
    if not layout.mask_size or layout.mask_in_obs:
        return None
    return np.ones(layout.mask_size if count is None else (count, layout.mask_size), np.bool_)
