"""The outcome of a check, and how a mistake is recognised by the numbers that it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from surefoot.conformance.adapter import Adapter, AdapterError

if TYPE_CHECKING:
    from surefoot.types import Array

Result = Literal["passed", "failed", "not checked"]


@dataclass(frozen=True)
class Finding:
    """One line of the table. `means`: the mistake, or why there is no result; empty if the check passed."""

    check: str
    result: Result
    expected: str = ""
    found: str = ""
    means: str = ""


@dataclass(frozen=True)
class Mistake:
    """A known mistake and the numbers that it leads to."""

    means: str
    numbers: Array


@dataclass(frozen=True)
class Check:
    """`run` asks the adapter's `function` and returns the finding."""

    name: str
    function: str
    line: str
    run: Callable[[Check, Adapter], Finding]

    def carry_out(self, adapter: Adapter) -> Finding:
        """Errors of the adapter become findings, so that the other checks go on."""
        if self.function not in adapter.about["functions"]:
            why = adapter.about["notes"].get(self.name) or f"the adapter has no function {self.function}"
            return Finding(self.name, "not checked", means=why)
        try:
            return self.run(self, adapter)
        except AdapterError as error:
            return Finding(self.name, "failed", found="no answer", means=str(error))


def as_array(answer: object, shape: tuple[int, ...]) -> Array:
    """The adapter's numbers in the shape that was asked for."""
    try:
        found = np.asarray(answer, np.float64)
    except (TypeError, ValueError):
        raise AdapterError(f"the adapter answered {answer!r}, which are not numbers") from None
    if found.shape != shape and found.size != int(np.prod(shape)):
        raise AdapterError(f"the adapter answered numbers of shape {list(found.shape)} instead of {list(shape)}")
    if found.shape != shape and sum(n > 1 for n in found.shape) > 1:  # [N, T] for [T, N], for example
        raise AdapterError(f"the adapter answered numbers of shape {list(found.shape)} instead of {list(shape)}")
    return found.reshape(shape)


def recognise(found: Array, expected: Array, mistakes: Iterable[Mistake], tolerance: float) -> str:
    """The mistake whose numbers are the nearest, if they are near enough and not also the expected ones."""
    if not np.isfinite(found).all():
        return "There are numbers that are not finite."
    near = [
        (float(np.abs(found - mistake.numbers).max()), mistake.means)
        for mistake in mistakes
        if np.abs(mistake.numbers - expected).max() > 2 * tolerance
    ]
    distance, means = min(near, default=(np.inf, ""))
    return means if distance <= 2 * tolerance else ""
