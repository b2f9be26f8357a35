"""A network in C++ that exists from its creation until it is freed. Imports no torch: workers act with one, too."""

from __future__ import annotations

from ctypes import byref, c_int64, c_void_p
from typing import TYPE_CHECKING, NamedTuple

from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load

if TYPE_CHECKING:
    from surefoot.types import Array

SIGNATURES: Signatures = {
    "create": [c_void_p, c_int64, c_void_p, *[c_int64] * 5, c_void_p],
    "destroy": [c_void_p],
    "threads": [c_void_p, c_void_p],
}


class Tables(NamedTuple):
    """A `Description` in plain numbers, which another process can be given."""

    numbers: Array  # int64, as `Description` in `src/handle.hpp` reads them
    ranges: Array  # float32, likewise
    size: int  # length of the parameter vector
    actor_size: int
    first_trained: int
    width: int  # numbers in a row of inputs and masks
    remembered: int  # numbers of one env's memory; 0: none


class Handle:
    """The network of these tables. It also works in a forked child, with its own threads."""

    def __init__(self, tables: Tables, threads: int = 1) -> None:
        self.handle: int | None = None
        self._made = Library(load("nn"), "sf_", SIGNATURES)
        self.width, self.remembered, self.asked = tables.width, tables.remembered, threads
        numbers, ranges = tables.numbers, tables.ranges
        made, sizes = c_void_p(), (tables.size, tables.actor_size, tables.first_trained)
        self._made.create(
            numbers.ctypes.data, len(numbers), ranges.ctypes.data, len(ranges), *sizes, threads, byref(made)
        )
        self.handle = made.value

    @property
    def threads(self) -> int:
        """The number of threads: as requested, or as many as the system allows."""
        found = c_int64()
        self._made.threads(self.handle, byref(found))
        return found.value

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._made.destroy(self.handle)
