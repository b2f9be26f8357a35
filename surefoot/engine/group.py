"""Several processes that learn as one: the only module that knows about them. A single-process run uses `ALONE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """The processes of a run, each with its share of the envs."""

    size: int

    def sum_(self, numbers: Tensor) -> Tensor:
        """Replace the numbers by their sum over all processes, added in a fixed order."""
        ...

    def agree(self, value: float) -> float:
        """The first process's value, so that all processes decide alike."""
        ...


class Alone:
    """One process: nothing is exchanged."""

    size = 1

    def sum_(self, numbers: Tensor) -> Tensor:
        return numbers

    def agree(self, value: float) -> float:
        return value


ALONE = Alone()
