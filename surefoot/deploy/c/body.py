"""The statements of the step function of an exported policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.heads import write_exploration, write_head, write_noise
from surefoot.deploy.c.operations import IN_PLACE, write_copy, write_operation, write_row
from surefoot.deploy.c.writer import Writer
from surefoot.deploy.choosing import num_noise

if TYPE_CHECKING:
    from surefoot.types import Array


def starts(program: ops.Program) -> Array:
    """`[numbers]` float32: the first choice where a number of an observation is a choice, else 0."""
    parts = [np.broadcast_to(np.reshape(leaf.start, -1), leaf.size) for leaf in program.layout.leaves]
    return np.concatenate(parts).astype(np.float32)


def is_bytes(program: ops.Program) -> bool:
    """Whether observations are a single image of bytes, which stays so."""
    return program.layout.plain and program.layout.leaves[0].dtype == np.uint8


class Body:
    """The statements of the step function."""

    def __init__(self, program: ops.Program, *, drawn: bool) -> None:
        self.program, self.drawn = program, drawn
        self.writer = Writer()
        self.places: dict[ops.At, str] = {}
        self._owned: dict[ops.At, tuple[int, int]] = {}  # working memory of each result
        self._base: dict[ops.At, ops.At] = {}  # the result whose memory a slice is a part of
        self.params = list(program.params) if drawn else [ops.mode_of(head) for head in program.heads]
        explored = drawn and program.exploration is not None
        self.exploration = program.exploration if explored else None
        self.kept = [*self.params, *([] if program.memory is None else [program.memory])]
        self.kept += [] if self.exploration is None else [self.exploration.features]

    def write(self) -> None:
        order = self.program.needed(*self.kept)
        last = self._last_uses(order)
        for at in order:
            self._compute(at, last)
            for source in {self._root(x) for x in (at, *ops.sources(self.program.operations[at]))}:
                if last[source] == at and source in self._owned:
                    self.writer.release(*self._owned.pop(source))
        self._finish()

    def _root(self, at: ops.At) -> ops.At:
        return self._root(self._base[at]) if at in self._base else at

    def _last_uses(self, order: list[ops.At]) -> dict[ops.At, ops.At]:
        """When each result is read last; a slice reads what it is a part of, as long as it is itself read."""
        for at in order:
            operation = self.program.operations[at]
            if isinstance(operation, ops.Slice):
                self._base[at] = operation.x
        last = {at: at for at in order}
        for at in order:
            for source in ops.sources(self.program.operations[at]):
                last[self._root(source)] = max(last[self._root(source)], at)
        return {**last, **{self._root(at): len(self.program.operations) for at in self.kept}}

    def _compute(self, at: ops.At, last: dict[ops.At, ops.At]) -> None:
        operation, writer = self.program.operations[at], self.writer
        sources = [self.places[x] for x in ops.sources(operation)]
        if isinstance(operation, ops.Slice):
            self.places[at] = f"{sources[0]} + {operation.start}"
        elif isinstance(operation, ops.Remembered):
            self.places[at] = "state->memory"
        elif isinstance(operation, ops.Constant):
            self.places[at] = writer.floats(operation.values)
        elif isinstance(operation, ops.Row):
            self._row(at, operation)
        else:
            y = self._place(at, operation, last)
            if isinstance(operation, ops.Join):
                self._join(operation, y)
            else:
                write_operation(writer, operation, sources, y)

    def _row(self, at: ops.At, operation: ops.Row) -> None:
        start = starts(self.program)
        if not start.any() and not is_bytes(self.program):
            self.places[at] = "obs"
            return
        position = self.writer.reserve(operation.size)
        self._owned[at], self.places[at] = (position, operation.size), f"work + {position}"
        write_row(self.writer, start, self.places[at])

    def _place(self, at: ops.At, operation: ops.Operation, last: dict[ops.At, ops.At]) -> str:
        """Working memory for a result: that of its source, if the source is not needed any more."""
        if isinstance(operation, IN_PLACE):
            x = operation.x
            if x in self._owned and last[x] == at and self._owned[x][1] == operation.size:
                self._owned[at], self.places[at] = self._owned.pop(x), self.places[x]
                return self.places[at]
        position = self.writer.reserve(operation.size)
        self._owned[at], self.places[at] = (position, operation.size), f"work + {position}"
        return self.places[at]

    def _join(self, operation: ops.Join, y: str) -> None:
        offset = 0
        for part in operation.parts:
            size = self.program.operations[part].size
            write_copy(self.writer, self.places[part], f"{y} + {offset}", size)
            offset += size

    def _finish(self) -> None:
        program, writer = self.program, self.writer
        finite = writer.call("all_finite")
        for at in self.params:
            size = program.operations[at].size
            writer.say(f"if (!{finite}({self.places[at]}, {size})) return 1;")
            write_copy(writer, self.places[at], f"state->params + {self.param_offset(at)}", size)
        noise = self._noise() if self.drawn else [None] * len(program.heads)
        first = 0
        for head, own in zip(program.heads, noise, strict=True):
            own_params = ops.params_of(head) if self.drawn else (ops.mode_of(head),)
            write_head(writer, head, [self.places[x] for x in own_params], first, own)
            first += ops.width(head)
        if program.memory is not None:
            write_copy(writer, self.places[program.memory], "state->memory", program.memory_size)

    def param_offset(self, at: ops.At) -> int:
        before = self.params[: self.params.index(at)]
        return sum(self.program.operations[x].size for x in before)

    @property
    def num_params(self) -> int:
        return sum(self.program.operations[at].size for at in self.params)

    def _noise(self) -> list[str | None]:
        """Where the random numbers of each head are, after drawing them."""
        writer, how = self.writer, self.exploration
        explored = ""
        if how is not None:
            explored = f"work + {writer.reserve(how.log_std.shape[1])}"
            write_exploration(writer, how, self.places[how.features], explored)
        found: list[str | None] = []
        dimension = 0
        for head in self.program.heads:
            if how is not None and isinstance(head, (ops.Clipped, ops.Squashed)):
                found.append(f"{explored} + {dimension}")
                dimension += ops.width(head)
            else:
                place = f"work + {writer.reserve(num_noise(head))}"
                write_noise(writer, head, place)
                found.append(place)
        return found
