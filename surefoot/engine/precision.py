"""How exact products are on a GPU, with sums in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.backends import cuda, cudnn

from surefoot.policies.torch_defaults import Shared

if TYPE_CHECKING:
    from surefoot.engine.names import Precision

PARTS: dict[Precision, int] = {"float32": 3, "tf32": 2, "bf16": 1}  # of a number, in fused kernels (`fused_products`)
SLACK: dict[Precision, float] = {"float32": 1.0, "tf32": 30.0, "bf16": 1000.0}  # how much less exact results are


def held_precision(precision: Precision) -> AbstractContextManager[None]:
    """Set what PyTorch's own products and convolutions round to: nothing, or TensorFloat-32 (three decimal digits).

    PyTorch lets cuDNN's convolutions round, unless told otherwise. A rollout's small batches and an update's large ones
    could then round differently, and the first ratio of an update would not be 1 (`RATIO_TOLERANCE`). cuDNN also must
    not choose convolutions whose sums depend on the order in which threads arrive: the same seed gives the same bytes.
    """
    return (_exact if precision == "float32" else _rounded).held()


def _set(precision: str) -> Callable[[], None]:
    parts: tuple[Any, ...] = (cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    if precision != "ieee":  # otherwise matrix products stay as the user has them: exact, unless changed
        parts += (cuda.matmul,)
    before = [part.fp32_precision for part in parts]
    # The old switch first: PyTorch refuses to read it if it and the new ones disagree, which other code may cause.
    deterministic, cudnn.deterministic = cudnn.deterministic, True
    cudnn.allow_tf32 = precision != "ieee"
    for part in parts:
        part.fp32_precision = precision

    def undo() -> None:
        cudnn.deterministic = deterministic
        cudnn.allow_tf32 = "tf32" in before[:2]
        for part, old in zip(parts, before, strict=True):
            part.fp32_precision = old

    return undo


_exact, _rounded = Shared(partial(_set, "ieee")), Shared(partial(_set, "tf32"))
