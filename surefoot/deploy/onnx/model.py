"""The ONNX model of a `Program`: its inputs, its outputs and what is between them.

observation, or observation/PATH for each part of a Dict or Tuple     [N, *shape]
action_mask (if the policy uses masks)                                [N, choices], bool
memory (if it has one), zeros at the start of an episode              [N, M]
random, exploration: if actions are drawn, see drawing.py
→ action, or action/PATH for each part; parameters [N, A]; memory_out [N, M]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, checker, helper

from surefoot import __version__
from surefoot.deploy import program as ops
from surefoot.deploy.choosing import inside, paths
from surefoot.deploy.onnx.drawing import Drawing
from surefoot.deploy.onnx.graph import FAR_BELOW, Graph
from surefoot.deploy.onnx.random_inputs import num_uniform
from surefoot.math.constants import BETA_EDGE

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

    from surefoot.spaces.rows import Leaf

OPSET, IR_VERSION = 17, 8  # from 2022, so that older runtimes read the file as well


def input_name(leaf: Leaf) -> str:
    return f"observation/{leaf.path}" if leaf.path else "observation"


def input_dtype(leaf: Leaf) -> type[np.generic]:
    """Bytes for images of bytes, whole numbers for choices, float32 for everything else."""
    if leaf.kind == "image" and leaf.dtype == np.uint8:
        return np.uint8
    return np.int64 if leaf.sizes else np.float32


def output_names(program: ops.Program) -> list[str]:
    """The name of each head's action."""
    return [f"action/{path}" if path else "action" for path in paths(program.action_space)]


def build_model(program: ops.Program, about: str = "", *, drawn: bool = False) -> ModelProto:
    graph, at = Graph(), dict[ops.At, str]()
    kept = [*program.params, *([] if program.memory is None else [program.memory])]
    kept += [program.exploration.features] if drawn and program.exploration is not None else []
    for index in program.needed(*kept):
        operation = program.operations[index]
        if isinstance(operation, ops.Row):
            at[index] = _row(graph, program)
        elif isinstance(operation, ops.Remembered):
            at[index] = "memory"
        elif isinstance(operation, ops.Constant):
            at[index] = graph.constant(operation.values[None])
        else:
            at[index] = graph.operation(operation, at)
    drawing = Drawing(graph, program, at) if drawn else None
    outputs = []
    for head, name in zip(program.heads, output_names(program), strict=True):
        outputs.append(_choose(graph, head, name, at[ops.mode_of(head)], drawing))
    outputs.append(_parameters(graph, program, at))
    if program.memory is not None:
        graph.add("Identity", at[program.memory], name="memory_out")
        outputs.append(_value("memory_out", TensorProto.FLOAT, (program.memory_size,)))
    made = helper.make_graph(graph.nodes, "policy", list(_inputs(program, drawn=drawn)), outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION, producer_name="surefoot")
    model.producer_version, model.doc_string = __version__, about
    checker.check_model(model, full_check=True)
    return model


def _inputs(program: ops.Program, *, drawn: bool) -> Iterator[ValueInfoProto]:
    layout = program.layout
    for leaf in layout.leaves:
        yield _value(input_name(leaf), helper.np_dtype_to_tensor_dtype(np.dtype(input_dtype(leaf))), leaf.shape)
    if layout.mask_size:
        yield _value("action_mask", TensorProto.BOOL, (layout.mask_size,))
    if program.memory is not None:
        yield _value("memory", TensorProto.FLOAT, (program.memory_size,))
    if drawn:
        yield _value("random", TensorProto.FLOAT, (sum(num_uniform(program, head) for head in program.heads),))
    if drawn and program.exploration is not None:
        features, dimensions = program.exploration.log_std.shape
        yield _value("exploration", TensorProto.FLOAT, (features + 1, dimensions))


def _value(name: str, kind: int, shape: tuple[int, ...]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["N", *shape])


def _row(graph: Graph, program: ops.Program) -> str:
    parts = []
    for leaf in program.layout.leaves:
        x = graph.rows(input_name(leaf), leaf.size)
        if leaf.sizes:
            first = np.broadcast_to(np.reshape(leaf.start, -1), leaf.size)
            x = graph.add("Sub", x, graph.constant(first, np.int64))
        parts.append(x if input_dtype(leaf) is np.float32 else graph.cast(x, TensorProto.FLOAT))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _parameters(graph: Graph, program: ops.Program, at: dict[ops.At, str]) -> ValueInfoProto:
    """All parameters of the distribution. A constant among them has no axis for the batch yet."""
    parts = []
    for index in program.params:
        name = at[index]
        if _is_constant(program, index):
            zeros = graph.add("Mul", at[ops.mode_of(program.heads[0])], graph.constant(0.0))
            column = graph.add("ReduceSum", zeros, graph.constant(np.array([1]), np.int64), keepdims=1)
            name = graph.add("Add", column, name)
        parts.append(name)
    graph.add("Concat", *parts, name="parameters", axis=1)
    return _value("parameters", TensorProto.FLOAT, (sum(program.operations[i].size for i in program.params),))


def _is_constant(program: ops.Program, index: ops.At) -> bool:
    operation = program.operations[index]
    return isinstance(operation, ops.Constant) or (
        isinstance(operation, ops.Slice) and _is_constant(program, operation.x)
    )


def _choose(graph: Graph, head: ops.Head, name: str, mode: str, drawing: Drawing | None) -> ValueInfoProto:
    """`mode`: what the likeliest action depends on."""
    params = mode if drawing is None else drawing.numbers(head)
    if isinstance(head, ops.Choice):
        found, start = [], 0
        for size in head.sizes:
            own = params if len(head.sizes) == 1 else graph.part(params, start, start + size)
            found.append(graph.add("ArgMax", own, axis=1, keepdims=1))
            start += size
        chosen = found[0] if len(found) == 1 else graph.add("Concat", *found, axis=1)
        numbers = graph.add("Add", chosen, graph.constant(head.start, np.int64))
    elif isinstance(head, ops.Bits):
        zero = graph.constant(0.0, np.float32 if drawing is None else np.float64)
        numbers = graph.cast(graph.add("Greater", params, zero), TensorProto.INT64)
    else:
        numbers = _continuous(graph, head, params, drawn=drawing is not None)
    kind = TensorProto.INT64 if isinstance(head, (ops.Choice, ops.Bits)) else TensorProto.FLOAT
    shape = np.array((-1, *head.shape))
    graph.add("Reshape", numbers, graph.constant(shape, np.int64), name=name)
    return _value(name, kind, head.shape)


def _continuous(graph: Graph, head: ops.Clipped | ops.Squashed | ops.BetaPeak, params: str, *, drawn: bool) -> str:
    low, high = inside(head.low, head.high)
    if isinstance(head, ops.BetaPeak):
        params = _between(graph, head, params if drawn else _beta_peak(graph, head, params))
    elif drawn:
        params = graph.cast(params, TensorProto.FLOAT)
    if isinstance(head, ops.Squashed):
        half = graph.add("Mul", graph.constant(head.high / 2 - head.low / 2), graph.add("Tanh", params))
        params = graph.add("Add", graph.constant(head.low / 2 + head.high / 2), half)
    return graph.add("Min", graph.add("Max", params, graph.constant(low)), graph.constant(high))


def _beta_peak(graph: Graph, head: ops.BetaPeak, raw: str) -> str:
    """a/(a + b) with a, b = softplus(raw); far below 0, where both vanish, it is 1/(1 + eᵝ⁻ᵅ)."""
    size = ops.width(head)
    wide = graph.cast(raw, TensorProto.DOUBLE)
    alpha, beta = graph.part(wide, 0, size), graph.part(wide, size, 2 * size)
    floor, one = graph.constant(2 * FAR_BELOW, np.float64), graph.constant(1.0, np.float64)
    a, b = (graph.softplus(graph.add("Max", side, floor)) for side in (alpha, beta))
    near = graph.add("Div", a, graph.add("Add", a, b))
    apart = graph.add("Min", graph.add("Sub", beta, alpha), graph.constant(700.0, np.float64))
    far = graph.add("Div", one, graph.add("Add", one, graph.add("Exp", apart)))
    is_far = graph.add("Less", graph.add("Max", alpha, beta), graph.constant(FAR_BELOW, np.float64))
    x = graph.add("Where", is_far, far, near)
    edges = [graph.constant(edge, np.float64) for edge in (BETA_EDGE, 1.0 - BETA_EDGE)]
    return graph.add("Min", graph.add("Max", x, edges[0]), edges[1])


def _between(graph: Graph, head: ops.BetaPeak, x: str) -> str:
    """low + (high − low)·x."""
    width = graph.add("Mul", x, graph.constant(head.high - head.low, np.float64))
    return graph.cast(graph.add("Add", width, graph.constant(head.low, np.float64)), TensorProto.FLOAT)
