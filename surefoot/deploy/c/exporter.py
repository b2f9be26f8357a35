"""Exports to C99, checked by compiling and running the exported test program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.compiling import STRICT, find_compiler, replay
from surefoot.deploy.c.random_twin import RandomTwin
from surefoot.deploy.c.replay import TOLERANCE, recording, replay_program
from surefoot.deploy.c.source import translate
from surefoot.deploy.exporter import Parity, Wish, working_folder
from surefoot.deploy.trials import Expected, Trials, expected
from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array


class CExporter:
    tolerance = TOLERANCE

    def __init__(self, compiler: str | None = None, flags: tuple[str, ...] = STRICT) -> None:
        found = find_compiler() if compiler is None else (compiler,)
        if found is None:
            raise UsageError(
                "there is no C compiler, so the exported file could not be checked; install gcc or clang, or set CC"
            )
        self.compiler, self.flags = found, flags
        self.checked_with = " ".join((Path(found[0]).name, *found[1:], *flags))

    def translate(self, program: ops.Program, wish: Wish) -> Mapping[str, bytes]:
        found = translate(program, wish.name, seed=wish.seed, about=wish.about)
        files = {
            f"{wish.name}.h": found.header,
            f"{wish.name}.c": found.source,
            f"{wish.name}_test.c": replay_program(program, wish.name, drawn=wish.drawn),
        }
        return {name: text.encode("ascii") for name, text in files.items()}

    def check(self, folder: Path, program: ops.Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Parity:
        with working_folder() as place:
            file = place / "recording"
            wanted = self._expected(program, policy, trials, wish)
            file.write_bytes(recording(program, trials, wanted, computed_params(program, drawn=wish.drawn)))
            allowed = self.tolerance + wanted.rounding
            found = replay(folder, wish.name, file, allowed, self.compiler, self.flags)
        return Parity(
            observations=found.records,
            parameters=found.params,
            actions=found.actions,
            ties=found.ties,
            wrong=found.wrong,
            rounding=wanted.rounding,
            allowed=allowed,
            passed=found.passed,
        )

    def sample(self, program: ops.Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Mapping[str, bytes]:
        wanted = self._expected(program, policy, trials, wish)
        columns = computed_params(program, drawn=wish.drawn)
        return {f"{wish.name}_test.bin": recording(program, trials, wanted, columns)}

    def _expected(self, program: ops.Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Expected:
        return expected(policy, program, trials, None if wish.seed is None else _draws(program, wish.seed))


def computed_params(program: ops.Program, *, drawn: bool) -> Array:
    """Which of the distribution's parameters the C file computes: without draws, only what the mode depends on."""
    needed: list[bool] = []
    for head in program.heads:
        for number, at in enumerate(ops.params_of(head)):
            needed += [drawn or number == 0] * program.operations[at].size
    return np.flatnonzero(needed)


def _draws(program: ops.Program, seed: int) -> Callable[[Array], tuple[Array, Array | None]]:
    """The noise of every step: each episode has its own seed, as in the test program."""

    def draw(begins: Array) -> tuple[Array, Array | None]:
        episodes, rows, matrices = 0, [], []
        for sequence in begins:
            for starts in sequence:
                if starts:
                    twin, episodes = RandomTwin(program, seed + episodes), episodes + 1
                row, matrix = twin.step()
                rows.append(row)
                matrices.append(matrix)
        together = np.stack(rows).reshape(*begins.shape, -1)
        if matrices[0] is None:
            return together, None
        return together, np.stack([m for m in matrices if m is not None]).reshape(*begins.shape, *matrices[0].shape)

    return draw
