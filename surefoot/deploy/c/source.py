"""The C file and its header, from a `Program`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.body import Body, is_bytes
from surefoot.deploy.c.maths import FUNCTIONS, with_needs
from surefoot.deploy.choosing import paths
from surefoot.deploy.exporter import require_name
from surefoot.errors import UsageError
from surefoot.math.constants import GAMMA_CANDIDATES, LAYER_NORM_EPS
from surefoot.spaces.rows import MOST_CHOICES
from surefoot.text import one_line


@dataclass(frozen=True)
class Translation:
    header: str
    source: str


def translate(program: ops.Program, name: str, *, seed: int | None = None, about: str = "") -> Translation:
    """`seed`: of drawn actions; None: the most likely ones. `about`: a line that says what this is."""
    require_name(name)
    _require_exact(program)
    body = Body(program, drawn=seed is not None)
    body.write()
    header = _header(program, body, name, seed, about)
    return Translation(header, _source(body, name, about))


def _require_exact(program: ops.Program) -> None:
    """Choices pass as floats, which hold whole numbers up to 2²⁴."""
    seen = [int(np.max(np.abs(leaf.start))) + max(leaf.sizes) for leaf in program.layout.leaves if leaf.sizes]
    done = [int(np.max(np.abs(h.start))) + max(h.sizes) for h in program.heads if isinstance(h, ops.Choice)]
    if max([*seen, *done], default=0) > MOST_CHOICES:
        raise UsageError(f"a choice starts beyond {MOST_CHOICES:,}, which a float cannot hold exactly; wrap the env")


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

/* Numbers of an observation, and of an action, by their position:
{_parts(program)} */
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


def _parts(program: ops.Program) -> str:
    """A line for each part of observations and actions."""
    lines = [_range("observation", leaf.path, leaf.offset, leaf.size) for leaf in program.layout.leaves]
    first = 0
    for head, path in zip(program.heads, paths(program.action_space), strict=True):
        lines.append(_range("action", path, first, ops.width(head)))
        first += ops.width(head)
    return "\n".join(lines)


def _range(what: str, path: str, first: int, size: int) -> str:
    numbers = f"{first}" if size == 1 else f"{first} to {first + size - 1}"
    return f"   {what} {numbers}{_comment(one_line(f': {path}', 100)) if path else ''}"


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
#define LAYER_NORM_EPS {LAYER_NORM_EPS!r}
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
