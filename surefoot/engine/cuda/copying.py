"""Many tensors copied or cleared by few kernels: on a GPU, starting a small kernel takes longer than its work."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def copy_all(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """`into[i].copy_(values[i])` for all, by one kernel for each type of number."""
    pairs = defaultdict[torch.dtype, list[tuple["Tensor", "Tensor"]]](list)
    for one, other in zip(into, values, strict=True):
        pairs[one.dtype].append((one, other))
    for own in pairs.values():
        torch._foreach_copy_([one for one, _ in own], [other for _, other in own])


def clear_all(tensors: Iterable[Tensor]) -> None:
    """Make all of them 0."""
    by_type = defaultdict[torch.dtype, list["Tensor"]](list)
    for tensor in tensors:
        by_type[tensor.dtype].append(tensor)
    for own in by_type.values():
        torch._foreach_zero_(own)
