"""Constants on a device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def fixed(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """These numbers on a device, to be read only. They are copied there once: copying waits for the device, and cannot
    be part of a CUDA graph.
    """
    with torch.inference_mode(False):
        return torch.tensor(numbers, dtype=dtype, device=device)
