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


class WrongWeights(Misfit):
    """A weight that is missing, left over, or not as its description says."""


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
        """The array of this name; WrongWeights if it is missing, of another shape or dtype, or not finite."""
        if name not in self._arrays:
            raise WrongWeights(f"{name} is missing")
        found = self._arrays[name]
        try:
            ArrayOf(shape, dtype, low).check(found, name)
        except Misfit as misfit:
            raise WrongWeights(str(misfit)) from None
        self._taken.add(name)
        return np.ascontiguousarray(found)

    @property
    def left(self) -> list[str]:
        """The names that nobody has asked for."""
        return [name for name in self._arrays if name not in self._taken]

    def require_all_taken(self) -> None:
        """WrongWeights if there are some that the description does not mention."""
        left = [name for name in self.left if not name.startswith(NOT_ACTING)]
        if left:
            raise WrongWeights(f"{min(left)} is not a part of the policy that policy.json describes")
