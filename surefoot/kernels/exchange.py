"""Calls back into Python in the middle of compiled epochs, so that several processes can learn as one.

An exception in the callback ends the call in C++, and `during` raises it again.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_float, c_int, c_int64, c_void_p, cast
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from surefoot.kernels.arrays import address
from surefoot.kernels.structs import Exchange

if TYPE_CHECKING:
    from ctypes import _Pointer

    from surefoot.types import Array

    CPointer: TypeAlias = _Pointer[c_float]

Reduce: TypeAlias = "Callable[[Array], None]"  # changes the numbers in place
GRADIENT = CFUNCTYPE(c_int, POINTER(c_float), c_int64, c_void_p)


class Callbacks:
    """A Python function as a C function pointer, which is valid as long as this object lives.

    `moments` `[minibatches of all epochs, 3]`: (Σ w·A, Σ w·A², Σ w) of each over this many `processes`.
    """

    def __init__(self, gradient: Reduce | None, moments: Array | None = None, processes: int = 1) -> None:
        self.failure: BaseException | None = None
        self._moments = moments  # keeps it alive
        self._seen: tuple[int | None, int, Array] = (None, 0, np.empty(0, np.float32))
        self._gradient = GRADIENT(lambda at, count, _: self._call(gradient, self._array(at, count)))
        self.struct = Exchange(
            gradient=None if gradient is None else cast(self._gradient, c_void_p),
            moments=address(moments, np.float64),
            processes=processes,
        )

    def _array(self, at: CPointer, count: int) -> Array:
        """The numbers there. They are the same ones at every call, and to make an array of them takes its time."""
        place = cast(at, c_void_p).value
        if self._seen[:2] != (place, count):
            self._seen = place, count, np.ctypeslib.as_array(at, (count,))
        return self._seen[2]

    def _call(self, function: Reduce | None, numbers: Array) -> int:
        """0, or 1 if it has raised: an exception must not pass through C++."""
        assert function is not None
        try:
            function(numbers)
        except BaseException as failure:
            self.failure = failure
            return 1
        return 0

    def during(self, call: Callable[..., None], *arguments: object) -> None:
        """Make the call. If a callback raised, its exception replaces the library's error."""
        try:
            call(*arguments)
            return
        except RuntimeError as error:
            failed = self.failure or error
        raise failed  # outside the handler, so that it is not chained to the library's error
