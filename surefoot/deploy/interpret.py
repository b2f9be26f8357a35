"""Executes a `Program` with NumPy: the readable reference for every export, and what the light agent acts with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.math.constants import LAYER_NORM_EPS, LEAST_STD, LOG_STD_RANGE, NORMALIZED_CLIP

if TYPE_CHECKING:
    from surefoot.types import Array

FORBIDDEN = float(np.finfo(np.float32).min) / 2  # the logit of an illegal choice: its probability is exactly 0
MOST_AT_ONCE = 2**24  # numbers of the largest intermediate array of a convolution


@dataclass(frozen=True)
class Inputs:
    """What n observations bring with them."""

    rows: Array  # [n, numbers]; its dtype is that of the computation
    mask: Array | None  # [n, choices], bool
    memory: Array | None  # [n, M]


def split_rows(program: ops.Program, rows: Array, memory: Array | None, dtype: type = np.float32) -> Inputs:
    """Rows of the layout, which may end in a mask, as inputs. In float64, results have no rounding to speak of."""
    layout = program.layout
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))  # -1 does not work for no rows
    mask = None if layout.mask is None else flat[:, layout.mask] > 0.5
    with np.errstate(over="ignore"):  # as in PyTorch, a number that is too large becomes infinite
        seen = flat[:, layout.learned].astype(np.float32)
    return Inputs(seen.astype(dtype), mask, memory)


def execute(program: ops.Program, inputs: Inputs) -> dict[ops.At, Array]:
    """The result `[n, size]` of every operation that the distribution's parameters or the memory depend on."""
    found: dict[ops.At, Array] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # whoever uses the result checks that it is finite
        for at in program.acting:
            operation = program.operations[at]
            found[at] = RULES[type(operation)](operation, inputs, found)
    return found


def _row(o: ops.Row, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return inputs.rows


def _remembered(o: ops.Remembered, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    assert inputs.memory is not None
    return inputs.memory


def _constant(o: ops.Constant, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return np.broadcast_to(o.values, (len(inputs.rows), o.size))


def _slice(o: ops.Slice, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    part: Array = at[o.x][:, o.start : o.start + o.size]
    return part


def _join(o: ops.Join, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return np.concatenate([at[part] for part in o.parts], axis=1)


def _normalize(o: ops.Normalize, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    x = at[o.x]
    return np.where(o.active > 0, np.clip((x - o.shift) * o.scale, -NORMALIZED_CLIP, NORMALIZED_CLIP), x)


def _one_hot(o: ops.OneHot, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    hot: Array = at[o.x][:, o.component] == o.choice
    return hot.astype(inputs.rows.dtype)


def _embed(o: ops.Embed, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    chosen = np.clip(np.nan_to_num(at[o.x]), 0, o.most).astype(np.int64)
    vectors: Array = o.table[chosen + o.offset]
    return vectors.reshape(len(chosen), o.size)


def _picture(o: ops.Picture, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    x, (channels, height, width) = at[o.x], o.image
    if o.channels_last:
        x = np.moveaxis(x.reshape(len(x), o.frames, height, width, channels // o.frames), -1, -3)
    x = x.reshape(len(x), o.size)
    return x if o.divisor == 1.0 else x / np.float32(o.divisor)


def _windows(x: Array, image: ops.Sides, kernel: int, stride: tuple[int, int], padding: int, fill: float) -> Array:
    """`[n, channels, height, width, kernel, kernel]`: a view of what each output sees."""
    padded = x.reshape(len(x), *image)
    if padding:
        sides = (padding, padding)
        padded = np.pad(padded, ((0, 0), (0, 0), sides, sides), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1]]


def _convolution(o: ops.Convolution, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    channels, height, width = o.result
    weight = o.weight.reshape(channels, -1).T
    result = np.empty((len(at[o.x]), o.size), at[o.x].dtype)
    together = max(1, MOST_AT_ONCE // (height * width * len(weight)))
    for first in range(0, len(result), together):  # a batch of images would need gigabytes at once
        part = slice(first, first + together)
        windows = _windows(at[o.x][part], o.image, o.weight.shape[2], o.stride, o.padding, 0.0)
        seen = np.moveaxis(windows, 1, 3).reshape(-1, len(weight))  # a row for each output pixel
        outputs = (seen @ weight + o.bias).reshape(len(windows), height * width, channels)
        result[part] = np.moveaxis(outputs, 2, 1).reshape(len(windows), o.size)
    return result


def _max_pool(o: ops.MaxPool, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    windows = _windows(at[o.x], o.image, o.kernel, (o.stride, o.stride), o.padding, -np.inf)
    best: Array = np.max(windows, axis=(-2, -1))
    return best.reshape(len(windows), o.size)


def _linear(o: ops.Linear, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return at[o.x] @ o.weight.T + o.bias


def _layer_norm(o: ops.LayerNorm, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    apart = at[o.x] - at[o.x].mean(axis=1, keepdims=True)
    variance = (apart * apart).mean(axis=1, keepdims=True)
    normed: Array = apart / np.sqrt(variance + np.float32(LAYER_NORM_EPS)) * o.gain + o.bias
    return normed


def _activate(o: ops.Activate, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    x = at[o.x]
    if o.kind == "tanh":
        return np.tanh(x)
    if o.kind == "relu":
        return np.maximum(x, 0)
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) if o.kind == "elu" else x * sigmoid(x)


def _add(o: ops.Add, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return at[o.x] + at[o.y]


def _gates(o: ops.Gru | ops.Lstm, hidden: Array, at: dict[ops.At, Array]) -> tuple[Array, Array]:
    return at[o.x] @ o.of_input.T + o.input_bias, hidden @ o.of_hidden.T + o.hidden_bias


def _gru(o: ops.Gru, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    before = at[o.memory]
    seen, kept = (np.split(gates, 3, axis=1) for gates in _gates(o, before, at))
    reset, update = sigmoid(seen[0] + kept[0]), sigmoid(seen[1] + kept[1])
    new = np.tanh(seen[2] + reset * kept[2])
    after: Array = (1 - update) * new + update * before
    return after


def _lstm(o: ops.Lstm, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    hidden, cell = np.split(at[o.memory], 2, axis=1)
    seen, kept = _gates(o, hidden, at)
    entry, forget, new, output = np.split(seen + kept, 4, axis=1)
    cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(new)
    return np.concatenate([sigmoid(output) * np.tanh(cell), cell], axis=1)


def _squash_mean(o: ops.SquashMean, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    mean: Array = o.centre + o.half * np.tanh(at[o.x])
    return mean


def _state_std(o: ops.StateStd, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    return np.log(np.maximum(softplus(at[o.x]), np.float32(math.exp(LOG_STD_RANGE[0]))))


def _sde_std(o: ops.SdeStd, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    variance = (at[o.x] * at[o.x]) @ o.variance + np.float32(LEAST_STD**2)
    return np.clip(np.float32(0.5) * np.log(variance), *LOG_STD_RANGE)


def _masked(o: ops.Masked, inputs: Inputs, at: dict[ops.At, Array]) -> Array:
    assert inputs.mask is not None
    return np.where(inputs.mask[:, o.start : o.start + o.size], at[o.x], np.float32(FORBIDDEN))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    """log(1 + eˣ), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


RULES: dict[type, Callable[..., Array]] = {
    ops.Row: _row,
    ops.Remembered: _remembered,
    ops.Constant: _constant,
    ops.Slice: _slice,
    ops.Join: _join,
    ops.Normalize: _normalize,
    ops.OneHot: _one_hot,
    ops.Embed: _embed,
    ops.Picture: _picture,
    ops.Convolution: _convolution,
    ops.MaxPool: _max_pool,
    ops.Linear: _linear,
    ops.LayerNorm: _layer_norm,
    ops.Activate: _activate,
    ops.Add: _add,
    ops.Gru: _gru,
    ops.Lstm: _lstm,
    ops.SquashMean: _squash_mean,
    ops.StateStd: _state_std,
    ops.SdeStd: _sde_std,
    ops.Masked: _masked,
}
