"""Collects the nodes of an ONNX graph; every operation of a `Program` becomes a few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from surefoot.deploy import program as ops
from surefoot.deploy.interpret import FORBIDDEN
from surefoot.math.constants import LAYER_NORM_EPS, LEAST_STD, LOG_STD_RANGE, NORMALIZED_CLIP

if TYPE_CHECKING:
    from surefoot.types import Array

FAR_BELOW = -15.0  # softplus(x) is e^x here, to more digits than float32 has


class Graph:
    """Nodes, and the constants that they use. Results are named by number."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: object) -> str:
        result = name or f"r{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def constant(self, values: Array | float, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def cast(self, x: str, to: int, name: str | None = None) -> str:
        return self.add("Cast", x, name=name, to=to)

    def rows(self, x: str, *shape: int) -> str:
        """`x` as `[N, *shape]`."""
        return self.add("Reshape", x, self.constant(np.array((-1, *shape)), np.int64))

    def part(self, x: str, start: int, stop: int) -> str:
        """Columns of `x`."""
        ends = [self.constant(np.array([n]), np.int64) for n in (start, stop, 1)]
        return self.add("Slice", x, *ends)

    def affine(self, x: str, weight: Array, bias: Array) -> str:
        return self.add("Gemm", x, self.constant(weight), self.constant(bias), transB=1)

    def softplus(self, x: str) -> str:
        """log(1 + eˣ) of doubles, for x that are not far below 0."""
        positive = self.add("Max", x, self.constant(0.0, np.float64))
        small = self.add("Exp", self.add("Neg", self.add("Abs", x)))
        return self.add("Add", positive, self.add("Log", self.add("Add", small, self.constant(1.0, np.float64))))

    def operation(self, o: ops.Operation, at: dict[ops.At, str]) -> str:
        """Adds an operation whose sources are at these names."""
        return RULES[type(o)](self, o, at)


def _slice(graph: Graph, o: ops.Slice, at: dict[ops.At, str]) -> str:
    return graph.part(at[o.x], o.start, o.start + o.size)


def _join(graph: Graph, o: ops.Join, at: dict[ops.At, str]) -> str:
    return graph.add("Concat", *(at[part] for part in o.parts), axis=1)


def _normalize(graph: Graph, o: ops.Normalize, at: dict[ops.At, str]) -> str:
    moved = graph.add("Sub", at[o.x], graph.constant(o.shift))
    scaled = graph.add("Mul", moved, graph.constant(o.scale))
    clipped = graph.add("Clip", scaled, graph.constant(-NORMALIZED_CLIP), graph.constant(NORMALIZED_CLIP))
    return clipped if o.active.all() else graph.add("Where", graph.constant(o.active > 0, np.bool_), clipped, at[o.x])


def _one_hot(graph: Graph, o: ops.OneHot, at: dict[ops.At, str]) -> str:
    repeated = graph.add("Gather", at[o.x], graph.constant(o.component, np.int64), axis=1)
    return graph.cast(graph.add("Equal", repeated, graph.constant(o.choice)), TensorProto.FLOAT)


def _embed(graph: Graph, o: ops.Embed, at: dict[ops.At, str]) -> str:
    bounded = graph.add("Min", graph.add("Max", at[o.x], graph.constant(0.0)), graph.constant(o.most))
    chosen = graph.add("Add", graph.cast(bounded, TensorProto.INT64), graph.constant(o.offset, np.int64))
    return graph.rows(graph.add("Gather", graph.constant(o.table), chosen, axis=0), o.size)


def _picture(graph: Graph, o: ops.Picture, at: dict[ops.At, str]) -> str:
    x, (channels, height, width) = at[o.x], o.image
    if o.channels_last:
        x = graph.rows(x, o.frames, height, width, channels // o.frames)
        x = graph.rows(graph.add("Transpose", x, perm=[0, 1, 4, 2, 3]), o.size)
    return x if o.divisor == 1.0 else graph.add("Div", x, graph.constant(o.divisor))


def _convolution(graph: Graph, o: ops.Convolution, at: dict[ops.At, str]) -> str:
    image, weights = graph.rows(at[o.x], *o.image), [graph.constant(o.weight), graph.constant(o.bias)]
    kernel, pads = [o.weight.shape[2]] * 2, [o.padding] * 4
    found = graph.add("Conv", image, *weights, kernel_shape=kernel, strides=list(o.stride), pads=pads)
    return graph.rows(found, o.size)


def _max_pool(graph: Graph, o: ops.MaxPool, at: dict[ops.At, str]) -> str:
    image, pads = graph.rows(at[o.x], *o.image), [o.padding] * 4
    found = graph.add("MaxPool", image, kernel_shape=[o.kernel] * 2, strides=[o.stride] * 2, pads=pads)
    return graph.rows(found, o.size)


def _linear(graph: Graph, o: ops.Linear, at: dict[ops.At, str]) -> str:
    return graph.affine(at[o.x], o.weight, o.bias)


def _layer_norm(graph: Graph, o: ops.LayerNorm, at: dict[ops.At, str]) -> str:
    """In doubles: the difference of nearly equal numbers keeps its digits."""
    x = graph.cast(at[o.x], TensorProto.DOUBLE)
    apart = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[1], keepdims=1))
    variance = graph.add("ReduceMean", graph.add("Mul", apart, apart), axes=[1], keepdims=1)
    std = graph.add("Sqrt", graph.add("Add", variance, graph.constant(LAYER_NORM_EPS, np.float64)))
    normed = graph.cast(graph.add("Div", apart, std), TensorProto.FLOAT)
    return graph.add("Add", graph.add("Mul", normed, graph.constant(o.gain)), graph.constant(o.bias))


def _activate(graph: Graph, o: ops.Activate, at: dict[ops.At, str]) -> str:
    if o.kind == "silu":
        return graph.add("Mul", at[o.x], graph.add("Sigmoid", at[o.x]))
    return graph.add({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[o.kind], at[o.x])


def _add(graph: Graph, o: ops.Add, at: dict[ops.At, str]) -> str:
    return graph.add("Add", at[o.x], at[o.y])


def _gates(graph: Graph, o: ops.Gru | ops.Lstm, x: str, hidden: str) -> tuple[str, str]:
    return graph.affine(x, o.of_input, o.input_bias), graph.affine(hidden, o.of_hidden, o.hidden_bias)


def _gru(graph: Graph, o: ops.Gru, at: dict[ops.At, str]) -> str:
    before, size = at[o.memory], o.size
    seen, kept = (
        [graph.part(gates, n * size, (n + 1) * size) for n in range(3)] for gates in _gates(graph, o, at[o.x], before)
    )
    reset, update = (graph.add("Sigmoid", graph.add("Add", seen[n], kept[n])) for n in range(2))
    new = graph.add("Tanh", graph.add("Add", seen[2], graph.add("Mul", reset, kept[2])))
    # (1 − update) · new + update · before
    return graph.add("Add", new, graph.add("Mul", update, graph.add("Sub", before, new)))


def _lstm(graph: Graph, o: ops.Lstm, at: dict[ops.At, str]) -> str:
    size = o.size // 2
    hidden, cell = graph.part(at[o.memory], 0, size), graph.part(at[o.memory], size, 2 * size)
    gates = graph.add("Add", *_gates(graph, o, at[o.x], hidden))
    entry, forget, new, output = (graph.part(gates, n * size, (n + 1) * size) for n in range(4))
    kept = graph.add("Mul", graph.add("Sigmoid", forget), cell)
    cell = graph.add("Add", kept, graph.add("Mul", graph.add("Sigmoid", entry), graph.add("Tanh", new)))
    hidden = graph.add("Mul", graph.add("Sigmoid", output), graph.add("Tanh", cell))
    return graph.add("Concat", hidden, cell, axis=1)


def _squash_mean(graph: Graph, o: ops.SquashMean, at: dict[ops.At, str]) -> str:
    return graph.add(
        "Add", graph.constant(o.centre), graph.add("Mul", graph.constant(o.half), graph.add("Tanh", at[o.x]))
    )


def _state_std(graph: Graph, o: ops.StateStd, at: dict[ops.At, str]) -> str:
    x = graph.cast(at[o.x], TensorProto.DOUBLE)
    near = graph.add("Log", graph.softplus(graph.add("Max", x, graph.constant(FAR_BELOW, np.float64))))
    far = graph.add("Max", x, graph.constant(LOG_STD_RANGE[0], np.float64))
    is_far = graph.add("Less", x, graph.constant(FAR_BELOW, np.float64))
    return graph.cast(graph.add("Where", is_far, far, near), TensorProto.FLOAT)


def _sde_std(graph: Graph, o: ops.SdeStd, at: dict[ops.At, str]) -> str:
    squares = graph.add("Mul", at[o.x], at[o.x])
    variance = graph.add("MatMul", squares, graph.constant(o.variance))
    log = graph.add("Log", graph.add("Add", variance, graph.constant(LEAST_STD**2)))
    halved = graph.add("Mul", log, graph.constant(0.5))
    return graph.add("Clip", halved, *(graph.constant(end) for end in LOG_STD_RANGE))


def _masked(graph: Graph, o: ops.Masked, at: dict[ops.At, str]) -> str:
    legal = graph.part("action_mask", o.start, o.start + o.size)
    return graph.add("Where", legal, at[o.x], graph.constant(FORBIDDEN))


RULES: dict[type, Callable[..., str]] = {
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
