"""The random numbers of an exported C policy, drawn in Python: the check of an export needs the same ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.choosing import TINY, num_noise

if TYPE_CHECKING:
    from surefoot.types import Array

ALL = 2**64 - 1


class RandomTwin:
    """One episode of one policy."""

    def __init__(self, program: ops.Program, seed: int) -> None:
        self.program, self._state = program, seed & ALL
        self._matrix: Array | None = None
        self._held = 0

    def step(self) -> tuple[Array, Array | None]:
        """(the row of noise, gSDE's matrix) of the next step, as `policies/` lays them out."""
        how, rows = self.program.exploration, []
        if how is not None:
            features, dimensions = how.log_std.shape
            if self._held in (0, how.resample):
                numbers = [self._normal() for _ in range((features + 1) * dimensions)]
                self._matrix, self._held = np.array(numbers, np.float32).reshape(features + 1, dimensions), 0
            self._held = 1 if how.resample is None else self._held + 1
        for head in self.program.heads:
            if how is not None and isinstance(head, (ops.Clipped, ops.Squashed)):
                rows += [0.0] * num_noise(head)
            else:
                rows += self._noise(head)
        return np.array(rows, np.float32), self._matrix

    def _noise(self, head: ops.Head) -> list[float]:
        count = num_noise(head)
        if isinstance(head, (ops.Clipped, ops.Squashed)):
            return [self._normal() for _ in range(count)]
        if isinstance(head, ops.BetaPeak):
            normals = [self._normal() for _ in range(count // 2)]
            return normals + [math.log(self._uniform() or TINY) for _ in range(count // 2)]
        if isinstance(head, ops.Bits):
            uniforms = [self._uniform() for _ in range(count)]
            return [math.log(u or TINY) - math.log(1 - u) for u in uniforms]
        return [-math.log(-math.log(self._uniform() or TINY) or TINY) for _ in range(count)]

    def _uniform(self) -> float:
        self._state = (self._state + 0x9E3779B97F4A7C15) & ALL
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL
        return ((z ^ (z >> 31)) >> 40) * 2.0**-24

    def _normal(self) -> float:
        while True:
            x, y = 2 * self._uniform() - 1, 2 * self._uniform() - 1
            s = x * x + y * y
            if 0 < s < 1:
                return x * math.sqrt(-2 * math.log(s) / s)
