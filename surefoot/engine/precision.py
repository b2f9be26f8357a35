"""Full float32 precision, and sums in a fixed order, on a GPU as well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.backends import cudnn

from surefoot.policies.torch_defaults import Shared


def full_precision() -> AbstractContextManager[None]:
    """Disable TensorFloat-32 inside. PyTorch lets cuDNN's convolutions round to it, which is three decimal digits.

    A rollout's small batches and an update's large ones would then round differently, and the first ratio of an update
    would not be 1 (`RATIO_TOLERANCE`). Matrix products use full float32 unless the user changed it. cuDNN also must not
    choose convolutions whose sums depend on the order in which threads arrive: the same seed gives the same bytes.
    """
    return _exact.held()


def _ieee() -> Callable[[], None]:
    parts: tuple[Any, ...] = (cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    before = [part.fp32_precision for part in parts]
    # The old switch first: PyTorch refuses to read it if it and the new ones disagree, which other code may cause.
    deterministic, cudnn.deterministic = cudnn.deterministic, True
    cudnn.allow_tf32 = False
    for part in parts:
        part.fp32_precision = "ieee"

    def undo() -> None:
        cudnn.deterministic = deterministic
        cudnn.allow_tf32 = "tf32" in before
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision

    return undo


_exact = Shared(_ieee)
