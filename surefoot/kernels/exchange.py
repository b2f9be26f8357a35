"""Calls back into Python in the middle of compiled epochs, so that several processes can learn as one.

An exception in a callback ends the call in C++, and `during` raises it again.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_double, c_float, c_int, c_int64, c_void_p, cast
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from surefoot.kernels.structs import Exchange

if TYPE_CHECKING:
    from surefoot.types import Array

Reduce: TypeAlias = "Callable[[Array], None]"  # changes the numbers in place
GRADIENT = CFUNCTYPE(c_int, POINTER(c_float), c_int64, c_void_p)
MOMENTS = CFUNCTYPE(c_int, POINTER(c_double), c_void_p)
NUM_MOMENTS = 3  # Σ w·A, Σ w·A², Σ w


class Callbacks:
    """Python functions as C function pointers, which are valid as long as this object lives."""

    def __init__(self, gradient: Reduce | None, moments: Reduce | None) -> None:
        self.failure: BaseException | None = None
        self._gradient = GRADIENT(lambda at, count, _: self._call(gradient, np.ctypeslib.as_array(at, (count,))))
        self._moments = MOMENTS(lambda at, _: self._call(moments, np.ctypeslib.as_array(at, (NUM_MOMENTS,))))
        self.struct = Exchange(
            gradient=None if gradient is None else cast(self._gradient, c_void_p),
            moments=None if moments is None else cast(self._moments, c_void_p),
        )

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
