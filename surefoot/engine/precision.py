"""Float32 that is float32, on a GPU as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.backends import cudnn


@contextmanager
def full_precision() -> Iterator[None]:
    """No TensorFloat-32 inside. PyTorch lets cuDNN's convolutions round to it, which is three decimal digits.

    A rollout's small batches and an update's large ones then round differently, so that the first ratio of an update
    is not 1 (`RATIO_TOLERANCE`). Products of matrices are exact unless the user has asked for less.
    """
    parts: tuple[Any, ...] = (cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    before = [part.fp32_precision for part in parts]
    # The old switch first: PyTorch refuses to read it where it and the new ones disagree, as other code may.
    cudnn.allow_tf32 = False
    for part in parts:
        part.fp32_precision = "ieee"
    try:
        yield
    finally:
        cudnn.allow_tf32 = "tf32" in before
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision
