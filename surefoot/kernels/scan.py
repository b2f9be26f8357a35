"""The compiled twins of `math.returns.reverse_scan` and `math.statistics.explained_variance`."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import torch

from surefoot.kernels.library import load

if TYPE_CHECKING:
    from torch import Tensor


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, backwards over time with y_T = 0. All `[T, N]` float32."""
    assert x.shape == decay.shape, f"x {tuple(x.shape)} and decay {tuple(decay.shape)} differ"
    x, decay = x.contiguous(), decay.contiguous()
    y = torch.empty_like(x)
    _library().sf_reverse_scan(x.data_ptr(), decay.data_ptr(), y.data_ptr(), *x.shape)
    return y


def explained_variance(value: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """1 − Var(target − value) / Var(target), in float64."""
    pointers = (value.data_ptr(), target.data_ptr(), None if weight is None else weight.data_ptr())
    found: float = _library().sf_explained_variance(*pointers, len(value))
    return found


@cache
def _library() -> ctypes.CDLL:
    library = load("nn")
    library.sf_reverse_scan.restype = None
    library.sf_reverse_scan.argtypes = [c_void_p, c_void_p, c_void_p, c_int64, c_int64]
    library.sf_explained_variance.restype = c_double
    library.sf_explained_variance.argtypes = [c_void_p, c_void_p, c_void_p, c_int64]
    return library
