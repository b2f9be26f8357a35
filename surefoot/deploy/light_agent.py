"""An agent that acts with NumPy alone: for web services and robots, where PyTorch would be most of the start-up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.deploy.choosing import Noise, choose, draw_noise, to_env
from surefoot.deploy.interpret import execute, split_rows
from surefoot.errors import NOT_FINITE, NonFiniteError
from surefoot.spaces.given import given_memory, given_rows, given_starts
from surefoot.spaces.masks import ActionMasks
from surefoot.text import one_line

if TYPE_CHECKING:
    from surefoot.deploy.program import Program
    from surefoot.types import Array


class LightAgent:
    """`predict` as `surefoot.Agent` has it: the same actions up to rounding, and draws from the same distribution."""

    def __init__(self, program: Program, seed: int = 0) -> None:
        self.program, self._seed = program, seed
        self._masks = ActionMasks(program.action_space)
        self._matrix: Array | None = None  # the gSDE exploration matrix in use
        self._held = 0  # steps for which it has been used

    def __repr__(self) -> str:
        program = self.program
        memory = f", {program.memory_size} numbers of memory" if program.memory_size else ""
        return one_line(f"LightAgent({program.layout.tree} → {program.action_space}{memory})")

    def predict(
        self,
        observation: object,
        state: Array | None = None,
        episode_start: object = None,
        deterministic: bool = True,
        action_masks: Iterable[object] | None = None,
    ) -> tuple[Any, Array | None]:
        """(action, state) for one observation or a batch of them; see `surefoot.Agent.predict`."""
        program = self.program
        rows, single = given_rows(program.layout, self._masks, observation, action_masks)
        memory = None
        if program.memory is not None:
            memory = given_memory(state, episode_start, len(rows), program.memory_size)
        parts, after = self.act(rows, memory, deterministic, episode_start)
        action = to_env(program, parts, single=single)
        return action, after[0] if single and after is not None else after

    def act(
        self, rows: Array, memory: Array | None, deterministic: bool, episode_start: object = None
    ) -> tuple[list[Array], Array | None]:
        """(the numbers of each part of the action, the new memory) for rows of the policy's layout."""
        program = self.program
        results = execute(program, split_rows(program, rows, memory))
        if not all(np.isfinite(results[at]).all() for at in program.params):
            raise NonFiniteError(NOT_FINITE)
        noise = None if deterministic else self._noise(len(rows), episode_start)
        return choose(program, results, noise), None if program.memory is None else results[program.memory]

    @cached_property
    def generator(self) -> np.random.Generator:
        """Draws actions. Made at the first draw, because `numpy.random` takes as long to import as all the rest."""
        return np.random.default_rng(self._seed)

    def _noise(self, count: int, episode_start: object) -> Noise:
        """New noise. gSDE's matrix is kept between calls as `surefoot.Agent` keeps it."""
        noise, before = draw_noise(self.program, count, self.generator), self._matrix
        if noise.matrix is None:
            return noise
        assert self.program.exploration is not None
        over = self._held == self.program.exploration.resample
        if episode_start is None or before is None or len(before) != count or over:
            self._matrix, self._held = noise.matrix, 1
        else:
            begins = given_starts(episode_start, count)
            self._matrix, self._held = np.where(begins[:, None, None], noise.matrix, before), self._held + 1
        return replace(noise, matrix=self._matrix)
