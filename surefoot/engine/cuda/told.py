"""Numbers that the host tells a device without waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.types import Array

LETTERS = 4  # that may be under way: more than there are iterations ahead


class Told:
    """A tensor on the device and a few places on the host to send its next contents from.

    A copy from ordinary memory waits until the device has done all that was asked of it before. One from pinned memory
    does not, but its source must not change meanwhile.
    """

    def __init__(self, place: Tensor, letters: int = LETTERS) -> None:
        """`letters`: how many may be under way, at least."""
        self.place, self._sent, self._last = place, 0, np.zeros(0)
        shape, kind = place.shape, place.dtype
        self._letters = [torch.zeros(shape, dtype=kind, device="cpu", pin_memory=place.is_cuda) for _ in range(letters)]

    def tell(self, numbers: Array) -> None:
        """The device will know these numbers before it does what it is asked for next."""
        if np.array_equal(numbers, self._last):
            return
        letter = self._letters[self._sent % len(self._letters)]
        letter.copy_(torch.from_numpy(numbers))
        self.place.copy_(letter, non_blocking=True)
        self._sent, self._last = self._sent + 1, numbers
