"""The shape of data from files: declared beside the code that reads it, checked in one place.

    Record(step=Whole(), best=Optional(Row(Whole(), Number())))

A file with the right hash may still hold anything: another version may have written it, or a stranger who can compute
hashes. Each component of a run declares the shape of its state, and everything is checked before any of it is used. A
shape includes ranges where a wild number would allocate or loop without end, or overflow in compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MOST = 2**53  # the largest count: still exact as a float
SIZES = ("8", "16", "32", "64")
NUMBERS = {"bool", *(f"{kind}{size}" for kind in ("int", "uint") for size in SIZES), *(f"float{n}" for n in SIZES[1:])}


class Misfit(ValueError):
    """Data that does not have its declared shape; the message names the field."""


class Shape(Protocol):
    def check(self, value: object, where: str = "") -> None:
        """Raise Misfit if `value` does not have this shape; `where` names the field."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number."""

    low: int = 0
    high: int = MOST

    def check(self, value: object, where: str = "") -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise _misfit(value, where, f"a whole number from {self.low} to {self.high}")


@dataclass(frozen=True)
class Number:
    """A number, not NaN or infinite unless `finite` is off."""

    low: float = -math.inf
    finite: bool = True

    def check(self, value: object, where: str = "") -> None:
        wanted = f"a{' finite' if self.finite else ''} number" + (f" from {self.low:g}" if self.low > -math.inf else "")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _misfit(value, where, wanted)
        if isinstance(value, int) and abs(value) > 10**300:  # too large for a float
            raise _misfit(value, where, wanted)
        if (self.finite and not math.isfinite(value)) or value < self.low:
            raise _misfit(value, where, wanted)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def check(self, value: object, where: str = "") -> None:
        if not isinstance(value, bool):
            raise _misfit(value, where, "true or false")


@dataclass(frozen=True)
class Text:
    """A text that can be written to a file."""

    def check(self, value: object, where: str = "") -> None:
        if not isinstance(value, str):
            raise _misfit(value, where, "a string")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _misfit(value, where, "a string of valid characters") from None


@dataclass(frozen=True)
class Nothing:
    """null."""

    def check(self, value: object, where: str = "") -> None:
        if value is not None:
            raise _misfit(value, where, "null")


@dataclass(frozen=True)
class Optional:
    """A shape, or null. With `later`, the field may also be missing in a record: older versions do not write it."""

    shape: Shape
    later: bool = False

    def check(self, value: object, where: str = "") -> None:
        if value is not None:
            self.shape.check(value, where)


class Record:
    """A table with these fields. Others are ignored, because they are never read."""

    def __init__(self, fields: Mapping[str, Shape] | None = None, **more: Shape) -> None:
        self.fields: dict[str, Shape] = {**(fields or {}), **more}

    def check(self, value: object, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise _misfit(value, where, "a table")
        for name, shape in self.fields.items():
            if name in value:
                shape.check(value[name], _at(where, name))
            elif not (isinstance(shape, Optional) and shape.later):
                raise Misfit(f"{_at(where, name)} is missing")


@dataclass(frozen=True)
class MapOf:
    """A table with any names and values of one shape."""

    shape: Shape

    def check(self, value: object, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise _misfit(value, where, "a table")
        for name, item in value.items():
            self.shape.check(item, _at(where, name))


@dataclass(frozen=True)
class Items:
    """A list of values of one shape, of a given `length` if that is set."""

    shape: Shape
    length: int | None = None
    at_least: int = 0

    def check(self, value: object, where: str = "") -> None:
        wanted = "a list" if self.length is None else f"a list of {self.length}"
        if not isinstance(value, (list, tuple)) or (self.length is not None and len(value) != self.length):
            raise _misfit(value, where, wanted)
        if len(value) < self.at_least:
            raise _misfit(value, where, f"a list of at least {self.at_least}")
        for index, item in enumerate(value):
            self.shape.check(item, _at(where, index))


class Row:
    """A list of values, each with its own shape."""

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes

    def check(self, value: object, where: str = "") -> None:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.shapes):
            raise _misfit(value, where, f"a list of {len(self.shapes)}")
        for index, (shape, item) in enumerate(zip(self.shapes, value, strict=True)):
            shape.check(item, _at(where, index))


@dataclass(frozen=True)
class ArrayOf:
    """A tensor or NumPy array of numbers. None inside `shape`: any length; `shape` None: any shape."""

    shape: tuple[int | None, ...] | None
    dtype: str | None = None  # the name that NumPy and PyTorch use, "float32"; None: any number
    low: float | None = None
    high: float | None = None
    finite: bool = True

    def check(self, value: object, where: str = "") -> None:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise _misfit(value, where, "an array")
        if self.shape is not None and not _fits(tuple(shape), self.shape):
            wanted = " × ".join("any" if size is None else str(size) for size in self.shape) or "one number"
            raise Misfit(f"{where} has the shape {tuple(shape)}, not {wanted}")
        name = str(dtype).removeprefix("torch.")
        if name not in ({self.dtype} if self.dtype else NUMBERS):
            raise Misfit(f"{where} is of {name}, not {self.dtype or 'numbers'}")
        self._check_range(value, where)

    def _check_range(self, value: Any, where: str) -> None:
        """Check the range; without `finite`, numbers are not checked."""
        if not self.finite or str(value.dtype).removeprefix("torch.") == "bool" or not math.prod(value.shape):
            return
        numbers = value.cpu().numpy() if hasattr(value, "cpu") else value
        low, high = float(numbers.min()), float(numbers.max())  # NaN if any is
        if not (math.isfinite(low) and math.isfinite(high)):
            raise Misfit(f"{where} holds numbers that are not finite")
        if (self.low is not None and low < self.low) or (self.high is not None and high > self.high):
            wanted = "" if self.low is None else f" from {self.low:g}"
            wanted += "" if self.high is None else f" to {self.high:g}"
            raise Misfit(f"{where} holds numbers from {low:g} to {high:g}, not{wanted}")


@dataclass(frozen=True)
class Either:
    """One of several shapes."""

    shapes: Sequence[Shape]

    def check(self, value: object, where: str = "") -> None:
        misfit: Misfit | None = None
        for shape in self.shapes:
            try:
                return shape.check(value, where)
            except Misfit as error:
                misfit = misfit or error
        assert misfit is not None
        raise misfit


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(b in (a, None) for a, b in zip(shape, wanted, strict=True))


def _at(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _misfit(value: object, where: str, wanted: str) -> Misfit:
    found = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else type(value).__name__
    if value is None or isinstance(value, (bool, int, float, str)):
        found = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
        found = found if len(found) <= 60 else f"{found[:59]}…"
    return Misfit(f"{where or 'it'} is {found}, not {wanted}")
