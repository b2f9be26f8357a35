"""Drawn actions in an ONNX model. Its random numbers are inputs, so the model has no state and every draw repeats.

random        [N, U]          uniform on [0, 1), new at every step
exploration   [N, F + 1, D]   gSDE only: standard normal, kept for an episode or redrawn every few steps
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from surefoot.deploy import program as ops
from surefoot.deploy.onnx.random_inputs import num_uniform
from surefoot.math.constants import BETA_EDGE, GAMMA_CANDIDATES, LEAST_STD

if TYPE_CHECKING:
    from surefoot.deploy.onnx.graph import Graph

TINY = float(np.finfo(np.float32).tiny)


class Drawing:
    """Adds the nodes that draw each head's numbers. All are computed as doubles."""

    def __init__(self, graph: Graph, program: ops.Program, at: dict[ops.At, str]) -> None:
        self.graph, self.program, self.at = graph, program, at
        self._uniform = graph.cast("random", TensorProto.DOUBLE)
        self._column = self._dimension = 0
        self._explored = "" if program.exploration is None else self._explore(program.exploration)

    def numbers(self, head: ops.Head) -> str:
        """What takes the place of the head's mode: logits with noise, a drawn mean, or a drawn fraction (Beta)."""
        graph, params = self.graph, [graph_cast(self.graph, self.at[index]) for index in ops.params_of(head)]
        if isinstance(head, ops.BetaPeak):
            return self._beta(head, params[0])
        if isinstance(head, (ops.Clipped, ops.Squashed)):
            noise = self._gaussian(ops.width(head))
            return graph.add("Add", params[0], graph.add("Mul", graph.add("Exp", params[1]), noise))
        uniform = self._take(num_uniform(self.program, head))
        if isinstance(head, ops.Bits):
            one = graph.constant(1.0, np.float64)
            noise = graph.add("Sub", self._log(uniform), graph.add("Log", graph.add("Sub", one, uniform)))
        else:
            noise = graph.add("Neg", self._log(graph.add("Neg", self._log(uniform))))
        return graph.add("Add", params[0], noise)

    def _take(self, count: int) -> str:
        """The next uniform numbers."""
        first, self._column = self._column, self._column + count
        return self.graph.part(self._uniform, first, self._column)

    def _log(self, x: str) -> str:
        return self.graph.add("Log", self.graph.add("Max", x, self.graph.constant(TINY, np.float64)))

    def _normal(self, count: int) -> str:
        """Box and Muller: √(−2 log u) cos 2πv."""
        graph, u, v = self.graph, self._take(count), self._take(count)
        radius = graph.add("Sqrt", graph.add("Mul", self._log(u), graph.constant(-2.0, np.float64)))
        return graph.add("Mul", radius, graph.add("Cos", graph.add("Mul", v, graph.constant(math.tau, np.float64))))

    def _gaussian(self, size: int) -> str:
        if not self._explored:
            return self._normal(size)
        first, self._dimension = self._dimension, self._dimension + size
        return self.graph.part(self._explored, first, self._dimension)

    def _explore(self, how: ops.Exploration) -> str:
        """φ(s)ᵀ(σ ⊙ E) / √v(s) of all Gaussian dimensions."""
        graph, (count, size) = self.graph, how.log_std.shape
        std = np.exp(how.log_std.astype(np.float64))
        features, matrix = graph_cast(graph, self.at[how.features]), graph_cast(graph, "exploration")
        scaled = graph.add("Mul", graph.part(matrix, 0, count), graph.constant(std, np.float64))
        shift = graph.rows(graph.add("MatMul", graph.rows(features, 1, count), scaled), size)
        last = graph.rows(graph.part(matrix, count, count + 1), size)
        shift = graph.add("Add", shift, graph.add("Mul", last, graph.constant(LEAST_STD, np.float64)))
        squares = graph.add("Mul", features, features)
        variance = graph.add("MatMul", squares, graph.constant(std * std, np.float64))
        variance = graph.add("Add", variance, graph.constant(LEAST_STD**2, np.float64))
        return graph.add("Div", shift, graph.add("Sqrt", variance))

    def _beta(self, head: ops.BetaPeak, raw: str) -> str:
        """X/(X + Y) of two gamma variates: the first accepted of a few candidates (Marsaglia & Tsang 2000)."""
        graph, each, size = self.graph, GAMMA_CANDIDATES, 2 * ops.width(head)
        normal = graph.rows(self._normal(size * each), size, each)
        log_uniform = graph.rows(self._log(self._take(size * each)), size, each)
        one, third = graph.constant(1.0, np.float64), graph.constant(2.0 / 3.0, np.float64)
        d = graph.rows(graph.add("Add", graph.softplus(raw), third), size, 1)  # the shape, 1 + softplus, less ⅓
        nine = graph.add("Sqrt", graph.add("Mul", d, graph.constant(9.0, np.float64)))
        root = graph.add("Add", one, graph.add("Div", normal, nine))
        cut = graph.add("Max", root, graph.constant(1e-6, np.float64))
        v = graph.add("Mul", cut, graph.add("Mul", cut, cut))
        bound = graph.add("Mul", d, graph.add("Add", graph.add("Sub", one, v), graph.add("Log", v)))
        half = graph.add("Mul", graph.add("Mul", normal, normal), graph.constant(0.5, np.float64))
        fits = graph.add("Less", log_uniform, graph.add("Add", half, bound))
        positive = graph.add("Greater", root, graph.constant(0.0, np.float64))
        last = graph.constant(np.arange(each) == each - 1, np.bool_)
        accepted = graph.add("Or", graph.add("And", fits, positive), last)
        first = graph.add("ArgMax", graph.cast(accepted, TensorProto.FLOAT), axis=2, keepdims=1)
        gamma = graph.rows(graph.add("Mul", d, graph.add("GatherElements", v, first, axis=2)), size)
        x, y = graph.part(gamma, 0, size // 2), graph.part(gamma, size // 2, size)
        fraction = graph.add("Div", x, graph.add("Add", x, y))
        edges = [graph.constant(edge, np.float64) for edge in (BETA_EDGE, 1.0 - BETA_EDGE)]
        return graph.add("Min", graph.add("Max", fraction, edges[0]), edges[1])


def graph_cast(graph: Graph, x: str) -> str:
    return graph.cast(x, TensorProto.DOUBLE)
