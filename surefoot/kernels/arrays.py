"""Passes arrays and tensors to the kernels: by address, contiguous, with the right dtype. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array

Numbers: TypeAlias = "Array | Tensor"
TORCH_TYPES: dict[type[np.generic], str] = {
    np.float32: "torch.float32",
    np.float64: "torch.float64",
    np.int64: "torch.int64",
    np.bool_: "torch.bool",
}


def address(array: Numbers | None, dtype: type[np.generic] = np.float32) -> int | None:
    """The address of the first number; None for None."""
    if array is None:
        return None
    if isinstance(array, np.ndarray):
        assert array.dtype == dtype, f"{array.dtype} where {dtype} is needed"
        assert array.flags.c_contiguous, "a contiguous array is needed"
        return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
    assert str(array.dtype) == TORCH_TYPES[dtype], f"{array.dtype}, not {dtype}"
    assert array.is_cpu, f"a tensor on {array.device}, where the kernels cannot read"
    assert array.is_contiguous(), "a contiguous tensor is needed"
    return array.data_ptr()
