"""The random inputs of a model whose actions are drawn, and the noise that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.choosing import TINY, num_noise
from surefoot.math.constants import GAMMA_CANDIDATES

if TYPE_CHECKING:
    from surefoot.types import Array


def num_uniform(program: ops.Program, head: ops.Head) -> int:
    """How many numbers of `random` a head uses."""
    if isinstance(head, ops.BetaPeak):
        return 3 * 2 * GAMMA_CANDIDATES * ops.width(head)
    if isinstance(head, (ops.Clipped, ops.Squashed)):
        return 0 if program.exploration is not None else 2 * ops.width(head)
    return num_noise(head)


@dataclass(frozen=True)
class RandomInputs:
    """For S sequences of L steps."""

    uniform: Array  # [S, L, U] float32
    matrix: Array | None  # [S, L, F + 1, D] float32

    @classmethod
    def draw(cls, program: ops.Program, begins: Array, seed: int) -> RandomInputs:
        generator = np.random.default_rng(seed)
        count = sum(num_uniform(program, head) for head in program.heads)
        uniform, matrix = generator.random((*begins.shape, count), np.float32), None
        if program.exploration is not None:
            features, dimensions = program.exploration.log_std.shape
            matrix = generator.standard_normal((*begins.shape, features + 1, dimensions), np.float32)
        return cls(uniform, matrix)

    def noise(self, program: ops.Program) -> tuple[Array, Array | None]:
        """The same as rows of noise, laid out as `policies/` does."""
        rows, first = [], 0
        for head in program.heads:
            count = num_uniform(program, head)
            own = self.uniform[..., first : first + count].astype(np.float64)
            rows.append(_noise(head, own))
            first += count
        return np.concatenate(rows, axis=-1).astype(np.float32), self.matrix


def _noise(head: ops.Head, uniform: Array) -> Array:
    if isinstance(head, (ops.Clipped, ops.Squashed)):
        if not uniform.shape[-1]:  # gSDE has a matrix instead
            return np.zeros((*uniform.shape[:-1], num_noise(head)))
        return _normal(uniform)
    if isinstance(head, ops.BetaPeak):
        third = uniform.shape[-1] // 3
        return np.concatenate([_normal(uniform[..., : 2 * third]), _log(uniform[..., 2 * third :])], axis=-1)
    if isinstance(head, ops.Bits):
        return _log(uniform) - np.log(1.0 - uniform)
    return -_log(-_log(uniform))


def _log(x: Array) -> Array:
    return np.log(np.maximum(x, TINY))


def _normal(uniform: Array) -> Array:
    u, v = np.split(uniform, 2, axis=-1)
    found: Array = np.sqrt(-2.0 * _log(u)) * np.cos(2.0 * np.pi * v)
    return found
