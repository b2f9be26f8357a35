"""One C statement or two for each operation of a `Program`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.writer import number
from surefoot.deploy.interpret import FORBIDDEN
from surefoot.math.constants import LEAST_STD, LOG_STD_RANGE, NORMALIZED_CLIP

if TYPE_CHECKING:
    from surefoot.deploy.c.writer import Writer
    from surefoot.types import Array

IN_PLACE = (
    ops.LayerNorm,
    ops.Activate,
    ops.Normalize,
    ops.Add,
    ops.SquashMean,
    ops.StateStd,
    ops.Masked,
)  # may overwrite x


def write_operation(writer: Writer, operation: ops.Operation, x: list[str], y: str) -> None:
    """`x`: where its sources are, as C expressions; `y`: where the result goes."""
    RULES[type(operation)](writer, operation, x, y)


def write_row(writer: Writer, start: Array, y: str) -> None:
    """The raw observation as a row: numbers as `float`, and choices counted from 0."""
    shift = f" - {writer.floats(start)}[i]" if start.any() else ""
    writer.loop(len(start), f"({y})[i] = (float)obs[i]{shift};")


def write_copy(writer: Writer, x: str, y: str, size: int) -> None:
    writer.loop(size, f"({y})[i] = ({x})[i];")


def _normalize(writer: Writer, o: ops.Normalize, x: list[str], y: str) -> None:
    shift, scale = writer.floats(o.shift), writer.floats(o.scale)
    clipped = writer.call("clip")
    scaled, most = f"(real)((({x[0]})[i] - {shift}[i]) * {scale}[i])", f"{NORMALIZED_CLIP:g}"
    value = f"(float){clipped}({scaled}, -{most}, {most})"
    if not o.active.all():
        value = f"{writer.whole(o.active)}[i] ? {value} : ({x[0]})[i]"
    writer.loop(o.size, f"({y})[i] = {value};")


def _one_hot(writer: Writer, o: ops.OneHot, x: list[str], y: str) -> None:
    component, choice = writer.whole(o.component), writer.floats(o.choice.astype(np.float32))
    writer.loop(o.size, f"({y})[i] = ({x[0]})[{component}[i]] == {choice}[i] ? 1.f : 0.f;")


def _embed(writer: Writer, o: ops.Embed, x: list[str], y: str) -> None:
    table, offset, most = writer.floats(o.table), writer.whole(o.offset), writer.whole(o.most)
    width = o.table.shape[1]
    writer.say(
        f"for (i = 0; i < {len(o.offset)}; i++) {{",
        f"    float choice = ({x[0]})[i];",
        f"    int chosen = choice > 0 ? choice < (float){most}[i] ? (int)choice : {most}[i] : 0;",
        f"    for (j = 0; j < {width}; j++) ({y})[i * {width} + j] = {table}[({offset}[i] + chosen) * {width} + j];",
        "}",
    )


def _picture(writer: Writer, o: ops.Picture, x: list[str], y: str) -> None:
    each, pixels = o.image[0] // o.frames, o.image[1] * o.image[2]
    scaled = "" if o.divisor == 1.0 else f" / {number(float(np.float32(o.divisor)))}"
    if not o.channels_last:
        writer.loop(o.size, f"({y})[i] = ({x[0]})[i]{scaled};")
        return
    target = f"(i / {each * pixels} * {each} + i % {each}) * {pixels} + i / {each} % {pixels}"
    writer.loop(o.size, f"({y})[{target}] = ({x[0]})[i]{scaled};")


def _convolution(writer: Writer, o: ops.Convolution, x: list[str], y: str) -> None:
    sizes = writer.whole((*o.image, *o.result, o.weight.shape[2], *o.stride, o.padding))
    weight, bias = writer.floats(o.weight), writer.floats(o.bias)
    writer.say(f"{writer.call('convolve')}({x[0]}, {weight}, {bias}, {sizes}, {y});")


def _max_pool(writer: Writer, o: ops.MaxPool, x: list[str], y: str) -> None:
    sizes = writer.whole((*o.image, *o.result[1:], o.kernel, o.stride, o.padding))
    writer.say(f"{writer.call('max_pool')}({x[0]}, {sizes}, {y});")


def _linear(writer: Writer, o: ops.Linear, x: list[str], y: str) -> None:
    _product(writer, o.weight, o.bias, x[0], y)


def _product(writer: Writer, weight: Array, bias: Array, x: str, y: str) -> None:
    names = f"{writer.floats(weight)}, {writer.floats(bias)}"
    writer.say(f"{writer.call('linear')}({x}, {names}, {weight.shape[1]}, {weight.shape[0]}, {y});")


def _layer_norm(writer: Writer, o: ops.LayerNorm, x: list[str], y: str) -> None:
    names = f"{writer.floats(o.gain)}, {writer.floats(o.bias)}"
    writer.say(f"{writer.call('layer_norm')}({x[0]}, {names}, {o.size}, {y});")


def _activate(writer: Writer, o: ops.Activate, x: list[str], y: str) -> None:
    writer.say(f"{writer.call(f'activate_{o.kind}')}({x[0]}, {o.size}, {y});")


def _add(writer: Writer, o: ops.Add, x: list[str], y: str) -> None:
    writer.loop(o.size, f"({y})[i] = ({x[0]})[i] + ({x[1]})[i];")


def _memory(writer: Writer, o: ops.Gru | ops.Lstm, x: list[str], y: str) -> None:
    gates, hidden = o.of_hidden.shape
    start = writer.reserve(2 * gates)
    seen, kept = f"work + {start}", f"work + {start + gates}"
    _product(writer, o.of_input, o.input_bias, x[0], seen)
    _product(writer, o.of_hidden, o.hidden_bias, x[1], kept)
    step = writer.call("gru" if isinstance(o, ops.Gru) else "lstm")
    writer.say(f"{step}({seen}, {kept}, {x[1]}, {hidden}, {y});")
    writer.release(start, 2 * gates)


def _squash_mean(writer: Writer, o: ops.SquashMean, x: list[str], y: str) -> None:
    squashed = f"(real){writer.floats(o.half)}[i] * {writer.call('own_tanh')}((real)({x[0]})[i])"
    writer.loop(o.size, f"({y})[i] = (float)((real){writer.floats(o.centre)}[i] + {squashed});")


def _state_std(writer: Writer, o: ops.StateStd, x: list[str], y: str) -> None:
    least = math.exp(LOG_STD_RANGE[0])
    std = f"{writer.call('clip')}({writer.call('softplus')}((real)({x[0]})[i]), (real){least!r}, (real)1e30)"
    writer.loop(o.size, f"({y})[i] = (float){writer.call('own_log')}({std});")


def _sde_std(writer: Writer, o: ops.SdeStd, x: list[str], y: str) -> None:
    low, high = LOG_STD_RANGE
    variance = writer.floats(o.variance)
    features, dimensions = o.variance.shape
    writer.say(
        f"for (i = 0; i < {dimensions}; i++) {{",
        f"    real sum = (real){LEAST_STD**2!r};",
        f"    for (j = 0; j < {features}; j++)",
        f"        sum += (real)({x[0]})[j] * (real)({x[0]})[j] * (real){variance}[j * {dimensions} + i];",
        f"    ({y})[i] = (float){writer.call('clip')}({writer.call('own_log')}(sum) / 2, {low:g}, {high:g});",
        "}",
    )


def _masked(writer: Writer, o: ops.Masked, x: list[str], y: str) -> None:
    forbidden = f"{FORBIDDEN:.9g}f"
    writer.loop(o.size, f"({y})[i] = !mask || mask[{o.start} + i] ? ({x[0]})[i] : {forbidden};")


RULES: dict[type, Callable[..., None]] = {
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
    ops.Gru: _memory,
    ops.Lstm: _memory,
    ops.SquashMean: _squash_mean,
    ops.StateStd: _state_std,
    ops.SdeStd: _sde_std,
    ops.Masked: _masked,
}
