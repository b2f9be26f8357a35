"""How the parameters of several agents lie side by side, for fused kernels.

A kernel has one code for one agent and for many, because other code may add in another order. It must know at compile
time how rows are aligned, or it loads number by number; so each agent's row begins where a vector can be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

VECTOR = 4  # float32 numbers that are loaded at once


def padded(size: int) -> int:
    """From the begin of an agent's row to the next one's, if a row has so many numbers."""
    return -(-size // VECTOR) * VECTOR


def stride_of(theta: Tensor) -> int:
    """The same of parameters `[agents, P]` as they lie; one agent's, `[P]`, could have others behind them."""
    return theta.stride(0) if theta.dim() == 2 else padded(len(theta))


def side_by_side(rows: Sequence[Tensor]) -> Tensor:
    """Copies of the rows, `[agents, P]`."""
    size = len(rows[0])
    found = rows[0].new_zeros(len(rows), padded(size))[:, :size]
    for place, row in zip(found, rows, strict=True):
        place.copy_(row)
    return found
