"""The C file and its header, from a `Program`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.heads import write_exploration, write_head, write_noise
from surefoot.deploy.c.maths import FUNCTIONS, with_needs
from surefoot.deploy.c.operations import IN_PLACE, write_copy, write_operation, write_row
from surefoot.deploy.c.writer import Writer
from surefoot.deploy.choosing import num_noise
from surefoot.errors import UsageError
from surefoot.math.constants import GAMMA_CANDIDATES
from surefoot.spaces.rows import MOST_CHOICES

if TYPE_CHECKING:
    from surefoot.types import Array

NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")


@dataclass(frozen=True)
class Translation:
    header: str
    source: str


def translate(program: ops.Program, name: str, *, seed: int | None = None, about: str = "") -> Translation:
    """`seed`: of drawn actions; None: the most likely ones. `about`: a line that says what this is."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name for C: use small letters, digits and _, starting with a letter")
    _require_exact(program)
    body = Body(program, drawn=seed is not None)
    body.write()
    header = _header(program, body, name, seed, about)
    return Translation(header, _source(body, name, about))


def starts(program: ops.Program) -> Array:
    """`[numbers]` float32: the first choice where a number of an observation is a choice, else 0."""
    parts = [np.broadcast_to(np.reshape(leaf.start, -1), leaf.size) for leaf in program.layout.leaves]
    return np.concatenate(parts).astype(np.float32)


def is_bytes(program: ops.Program) -> bool:
    """Whether observations are a single image of bytes, which stays so."""
    return program.layout.plain and program.layout.leaves[0].dtype == np.uint8


def _require_exact(program: ops.Program) -> None:
    """Choices pass as floats, which hold whole numbers up to 2²⁴."""
    seen = [int(np.max(np.abs(leaf.start))) + max(leaf.sizes) for leaf in program.layout.leaves if leaf.sizes]
    done = [int(np.max(np.abs(h.start))) + max(h.sizes) for h in program.heads if isinstance(h, ops.Choice)]
    if max([*seen, *done], default=0) > MOST_CHOICES:
        raise UsageError(f"a choice starts beyond {MOST_CHOICES:,}, which a float cannot hold exactly; wrap the env")


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


def _header(program: ops.Program, body: Body, name: str, seed: int | None, about: str) -> str:
    big, kind = name.upper(), "uint8_t" if is_bytes(program) else "float"
    members: list[str] = []
    if program.memory is not None:
        members.append(f"float memory[{program.memory_size}]; /* zero at the start of an episode */")
    if body.drawn:
        members.append("uint64_t random; /* the state of the random numbers */")
    if body.exploration is not None:
        features, dimensions = body.exploration.log_std.shape
        members += [f"float matrix[{(features + 1) * dimensions}]; /* gSDE */", "int held;"]
    members += [
        f"float params[{body.num_params}]; /* of the distribution of the last action */",
        f"float work[{max(1, body.writer.work)}]; /* nothing in it is kept between steps */",
    ]
    inner = "\n".join(f"    {member}" for member in members)
    seeding = ""
    if body.drawn:
        seeding = f"""
#define {big}_SEED UINT64_C({seed})

/* Before the first step: start the random numbers. */
void {name}_seed({name}_state *state, uint64_t seed);
"""
    return f"""/* {_comment(about)} Made by surefoot. */
#ifndef {big}_H
#define {big}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {big}_OBSERVATION {program.layout.numbers} /* numbers in an observation */
#define {big}_ACTION {program.num_numbers} /* numbers in an action */
#define {big}_MASK {program.layout.mask_size} /* choices that a mask may forbid */
#define {big}_MEMORY {program.memory_size} /* numbers that are remembered */
#define {big}_PARAMS {body.num_params} /* parameters of the distribution of an action */

typedef {kind} {name}_obs;

typedef struct {{
{inner}
}} {name}_state;
{seeding}
/* At the start of every episode. */
void {name}_begin({name}_state *state);

/* The action for a raw observation. mask: 1 for legal choices, 0 for the others; NULL: all are legal.
   Returns 0, or 1 if the result is not finite; action and memory are then left as they were. */
int {name}_step(const {name}_obs *obs, const unsigned char *mask, {name}_state *state, float *action);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _source(body: Body, name: str, about: str) -> str:
    writer, program = body.writer, body.program
    functions = "\n\n".join(FUNCTIONS[function].code for function in with_needs(writer.functions))
    indices = [f"int {index};" for index in "ij" if any(re.search(rf"\b{index}\b", line) for line in writer.lines)]
    unused = [] if program.layout.mask_size else ["(void)mask;"]
    work = ["float *work = state->work;"] if any("work" in line for line in writer.lines) else []
    setup = "\n".join(f"    {line}" for line in [*work, *indices, *unused])
    begin = []
    if program.memory is not None:
        begin += ["int i;", f"for (i = 0; i < {program.memory_size}; i++) state->memory[i] = 0;"]
    begin += [] if body.exploration is None else ["state->held = 0;"]
    start = "\n".join(f"    {line}" for line in begin or ["(void)state;"])
    seed = ""
    if body.drawn:
        seed = f"\nvoid {name}_seed({name}_state *state, uint64_t seed) {{ state->random = seed; }}\n"
    arrays, lines = "\n".join(writer.arrays), "\n".join(writer.lines)
    return f"""/* {_comment(about)} Made by surefoot. */
#include "{name}.h"

#ifndef SUREFOOT_REAL
#define SUREFOOT_REAL double
#endif
#define GAMMA_CANDIDATES {GAMMA_CANDIDATES}
typedef SUREFOOT_REAL real;

{arrays}

{functions}
{seed}
void {name}_begin({name}_state *state)
{{
{start}
}}

int {name}_step(const {name}_obs *obs, const unsigned char *mask, {name}_state *state, float *action)
{{
{setup}
{lines}
    return 0;
}}
"""


def _comment(text: str) -> str:
    """A text that may come from strangers, for a C comment: it can neither end it nor continue a line."""
    return re.sub(r"[^A-Za-z0-9 .,:;()/_+=-]", "_", text)
