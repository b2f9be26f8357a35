"""Where Python is asked in the middle of compiled epochs, so that several processes can learn as one.

An exception in a callback ends the call in C++ and is raised again by `during`, as itself.
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
    """Functions of Python as C function pointers, which live as long as this does."""

    def __init__(self, gradient: Reduce | None, moments: Reduce | None) -> None:
        self.failure: BaseException | None = None
        self._gradient = GRADIENT(lambda at, count, _: self._call(gradient, np.ctypeslib.as_array(at, (count,))))
        self._moments = MOMENTS(lambda at, _: self._call(moments, np.ctypeslib.as_array(at, (NUM_MOMENTS,))))
        self.struct = Exchange(
            gradient=None if gradient is None else cast(self._gradient, c_void_p),
            moments=None if moments is None else cast(self._moments, c_void_p),
        )

    def _call(self, function: Reduce | None, numbers: Array) -> int:
        """0, or 1 once it has raised: nothing may be raised through C++."""
        assert function is not None
        try:
            function(numbers)
        except BaseException as failure:
            self.failure = failure
            return 1
        return 0

    def during(self, call: Callable[..., None], *arguments: object) -> None:
        """Make the call. What a callback has raised is raised instead of the library's complaint that it failed."""
        try:
            call(*arguments)
            return
        except RuntimeError as error:
            failed = self.failure or error
        raise failed  # out here, so that it does not seem to have come from handling the other
