"""The global generators of Python, NumPy and PyTorch, which our own code never draws from.

A careless environment or callback may. If the process is ours alone, they are seeded, saved and restored with the run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch

from surefoot.envs.seeds import derive_seed
from surefoot.schema import ArrayOf, Number, Optional, Record, Shape, Whole

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array


class PythonState(TypedDict):
    version: int
    words: Array
    gauss: float | None


class NumPyState(TypedDict):
    key: Array
    pos: int
    has_gauss: int
    gauss: float


class GlobalsState(TypedDict):
    """The state of this process's global generators."""

    python: PythonState
    numpy: NumPyState
    torch: Tensor


def seed_globals(seed: int) -> None:
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy"))
    torch.manual_seed(derive_seed(seed, "torch"))


def capture_globals() -> GlobalsState:
    version, words, gauss = random.getstate()
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    return {
        "python": {"version": version, "words": np.array(words, np.int64), "gauss": gauss},
        "numpy": {
            "key": state["state"]["key"].astype(np.int64),
            "pos": int(state["state"]["pos"]),
            "has_gauss": int(state["has_gauss"]),
            "gauss": float(state["gauss"]),
        },
        "torch": torch.get_rng_state(),
    }


def seeded_globals(seed: int) -> GlobalsState:
    """What `capture_globals` gives in a process of the run's own from which nobody has drawn."""
    before = capture_globals()
    try:
        seed_globals(seed)
        return capture_globals()
    finally:
        restore_globals(before)


def globals_shape() -> Shape:
    """Both Mersenne twisters have 624 words of 32 bits and an index; a larger index would read out of bounds."""
    most = float(2**32 - 1)
    words, key = ArrayOf((625,), "int64", 0.0, most), ArrayOf((624,), "int64", 0.0, most)
    return Record(
        python=Record(version=Whole(3, 3), words=words, gauss=Optional(Number())),
        numpy=Record(key=key, pos=Whole(0, 624), has_gauss=Whole(0, 1), gauss=Number()),
        torch=ArrayOf(tuple(torch.get_rng_state().shape), "uint8"),
    )


def restore_globals(state: GlobalsState) -> None:
    python, numbers = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(int(word) for word in python["words"]), python["gauss"]))
    key = np.asarray(numbers["key"], np.uint32)
    np.random.set_state(("MT19937", key, numbers["pos"], numbers["has_gauss"], numbers["gauss"]))
    torch.set_rng_state(state["torch"])
