"""Compiled computations over a rollout: scans, advantages, explained variance, moments."""

from __future__ import annotations

from ctypes import byref, c_double, c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Array, Rollout

SIGNATURES: Signatures = {
    "reverse_scan": [*[c_void_p] * 3, c_int64, c_int64],
    "advantages": [*[c_void_p] * 6, *[c_int64] * 2, *[c_double] * 3, c_int64, c_void_p, c_void_p],
    "explained_variance": [*[c_void_p] * 3, c_int64, c_void_p],
    "moments": [c_void_p, c_int64, c_int64, c_void_p, c_void_p],
    "running_returns": [*[c_void_p] * 3, c_int64, c_int64, c_double, c_void_p, c_void_p],
}


def reverse_scan(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1}, backwards over time with y_T = 0. All `[T, N]` float32."""
    assert x.shape == decay.shape, f"x {tuple(x.shape)} and decay {tuple(decay.shape)} differ"
    x, decay = x.contiguous(), decay.contiguous()
    y = torch.empty_like(x)
    _library().reverse_scan(x.data_ptr(), decay.data_ptr(), y.data_ptr(), *x.shape)
    return y


def advantages(
    rollout: Rollout, gamma: float, lambda_: float, value_lambda: float, segment_length: int | None
) -> tuple[Tensor, Tensor]:
    """(GAE(λ), V + GAE(value_lambda)), both `[T, N]`; the same as in `math.operations.Operations`."""
    shape = rollout.reward.shape
    names = ("reward", "value", "next_value", "terminated", "truncated", "valid")
    tensors = [getattr(rollout, name).contiguous() for name in names]
    advantage, target = (torch.empty(shape, dtype=torch.float32, device="cpu") for _ in range(2))
    pointers = [tensor.data_ptr() for tensor in tensors]
    cut = segment_length or 0
    _library().advantages(*pointers, *shape, gamma, lambda_, value_lambda, cut, advantage.data_ptr(), target.data_ptr())
    return advantage, target


def explained_variance(value: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """1 − Var(target − value) / Var(target), in float64."""
    pointers = (value.data_ptr(), target.data_ptr(), None if weight is None else weight.data_ptr())
    found = c_double()
    _library().explained_variance(*pointers, len(value), byref(found))
    return found.value


def moments(rows: Array) -> tuple[Array, Array]:
    """(mean, population variance) over the first axis of `[B, ...]` float32, in float64."""
    rows = np.ascontiguousarray(rows, np.float32)
    mean, var = np.empty(rows.shape[1:]), np.empty(rows.shape[1:])
    _library().moments(rows.ctypes.data, len(rows), mean.size, mean.ctypes.data, var.ctypes.data)
    return mean, var


def running_returns(reward: Array, done: Array, valid: Array, gamma: float, running: Array) -> tuple[Array, Array]:
    """(G_t of every step, G after the last), like `math.moments.running_returns`. All `[T, N]`, `running` `[N]`."""
    reward, running = np.ascontiguousarray(reward, np.float64), np.array(running, np.float64)
    flags = [np.ascontiguousarray(x, np.bool_) for x in (done, valid)]
    out = np.empty_like(reward)
    pointers = [array.ctypes.data for array in (reward, *flags)]
    _library().running_returns(*pointers, *reward.shape, gamma, running.ctypes.data, out.ctypes.data)
    return out, running


@cache
def _library() -> Library:
    return Library(load("nn"), "sf_", SIGNATURES)
