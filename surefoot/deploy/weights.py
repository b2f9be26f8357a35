"""The weights of a checkpoint as NumPy arrays, each asked for by name and shape: a forged file cannot surprise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load

from surefoot.errors import CheckpointError
from surefoot.schema import ArrayOf, Misfit
from surefoot.training.evaluation.facts import WRONG_CONTENT, why

if TYPE_CHECKING:
    from pathlib import Path

    from surefoot.types import Array

NOT_ACTING = ("critic.", "critic_encoder.")  # names of weights that no action depends on


class Weights:
    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self._taken: set[str] = set()

    @classmethod
    def read(cls, folder: Path, files: dict[str, bytes]) -> Weights:
        """`files`: the contents of the checkpoint `folder`, with verified hashes."""
        try:
            return cls(load(files["policy.safetensors"]))
        except WRONG_CONTENT as error:
            raise CheckpointError(f"{folder / 'policy.safetensors'} cannot be read: {why(error)}") from None

    def take(self, name: str, shape: tuple[int, ...], dtype: str = "float32", low: float | None = None) -> Array:
        """The array of this name; Misfit if it is missing, of another shape or dtype, or not finite."""
        if name not in self._arrays:
            raise Misfit(f"{name} is missing")
        found = self._arrays[name]
        ArrayOf(shape, dtype, low).check(found, name)
        self._taken.add(name)
        return np.ascontiguousarray(found)

    def require_all_taken(self) -> None:
        """Misfit if there are weights that the description does not mention."""
        left = [name for name in self._arrays if name not in self._taken and not name.startswith(NOT_ACTING)]
        if left:
            raise Misfit(f"{min(left)} is not a part of the policy that policy.json describes")
