"""Collects the parts of a C file: constant arrays, statements, the functions they call, and working memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.types import Array

PER_LINE = 8
LARGEST_FLOAT = float(np.finfo(np.float32).max)  # stands for ∞: no finite float is beyond it


class Writer:
    def __init__(self) -> None:
        self.arrays: list[str] = []
        self.lines: list[str] = []
        self.functions: set[str] = set()
        self.work = 0  # numbers of working memory
        self._free: list[tuple[int, int]] = []  # (position, size) of holes in it

    def call(self, function: str) -> str:
        """The function's name; it will be a part of the file."""
        self.functions.add(function)
        return function

    def say(self, *lines: str) -> None:
        self.lines.extend(f"    {line}" for line in lines)

    def loop(self, size: int, statement: str) -> None:
        self.say(f"for (i = 0; i < {size}; i++) {statement}")

    def floats(self, values: Array) -> str:
        """The name of a constant array of `float`."""
        return self._array("float", (number(x) for x in values.reshape(-1).tolist()))

    def reals(self, values: Array) -> str:
        """The name of a constant array of `real`, to all digits of a double."""
        return self._array("real", (f"(real){bounded(x)!r}" for x in values.reshape(-1).tolist()))

    def whole(self, values: Iterable[int]) -> str:
        return self._array("int", (str(int(x)) for x in values))

    def _array(self, kind: str, texts: Iterable[str]) -> str:
        each = list(texts)
        name = f"c{len(self.arrays)}"
        rows = [", ".join(each[i : i + PER_LINE]) for i in range(0, len(each), PER_LINE)]
        body = ",\n    ".join(rows)
        self.arrays.append(f"static const {kind} {name}[{len(each)}] = {{\n    {body}}};")
        return name

    def reserve(self, size: int) -> int:
        """The position of this much working memory: in the first hole that is large enough, or at the end."""
        for index, (start, hole) in enumerate(self._free):
            if hole >= size:
                self._free[index] = (start + size, hole - size)
                return start
        start, self.work = self.work, self.work + size
        return start

    def release(self, start: int, size: int) -> None:
        """Give working memory back; neighbouring holes become one."""
        merged: list[tuple[int, int]] = []
        for begin, hole in sorted([*self._free, (start, size)]):
            if merged and merged[-1][0] + merged[-1][1] == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + hole)
            elif hole:
                merged.append((begin, hole))
        self._free = merged


def bounded(x: float) -> float:
    """∞ as the largest float."""
    return max(-LARGEST_FLOAT, min(LARGEST_FLOAT, x))


def number(x: float) -> str:
    """A float32 as C reads it back exactly."""
    text = f"{bounded(x):.9g}"
    return f"{text}f" if set(text) & set(".e") else f"{text}.f"
