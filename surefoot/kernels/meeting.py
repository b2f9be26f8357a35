"""Waiting for other processes of this machine, in memory that they share."""

from __future__ import annotations

from ctypes import byref, c_double, c_int64, c_void_p
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from surefoot.kernels.arrays import address
from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load

if TYPE_CHECKING:
    from surefoot.types import Array

SIGNATURES: Signatures = {
    "meet": [c_void_p, *[c_int64] * 3, c_double, c_double, c_void_p],
    "go": [c_void_p, c_int64],
}
PLACE = 8  # int64 numbers for each process: `Place` in src/meeting.hpp
ALL_HERE, NOT_YET = -1, -2
LEAST = 1 / 32  # share of the time that a process may spin


class Meeting:
    """Rounds to which every process comes; `places` `[processes, PLACE]` int64 is shared, and 0 at first."""

    def __init__(self, places: Array, own: int, spin: float) -> None:
        """`own`: the number of this process. `spin`: seconds at most to wait without leaving the core to others."""
        self._places, self._size, self._own = places, len(places), own
        self._spin = self._most = spin
        self._library = Library(load("nn"), "sf_", SIGNATURES)
        self._at = address(places, np.int64)

    def meet(self, number: int, limit: float) -> int:
        """Come to this round: `ALL_HERE`, `NOT_YET` after `limit` seconds, or which process has gone instead.

        What a process wrote before it came can be read by those that it has met.
        """
        found, begun = c_int64(), perf_counter()
        self._library.meet(self._at, self._size, self._own, number, self._spin, limit, byref(found))
        # On a busy machine the others may wait for this very core, and spinning is in their way.
        in_vain = perf_counter() - begun > self._spin
        self._spin = max(LEAST * self._most, self._spin / 2) if in_vain else min(self._most, self._spin * 2)
        return found.value

    def go(self) -> None:
        """This process comes to no other round."""
        self._library.go(self._at, self._own)
