"""The test program of an exported policy: it replays observations from a file and compares with what is expected."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.c.body import is_bytes, starts
from surefoot.deploy.trials import NEAR_TIE, scales

if TYPE_CHECKING:
    from surefoot.deploy.trials import Expected, Trials
    from surefoot.types import Array

TOLERANCE = 1e-6  # for numbers around 1; larger ones in proportion
TEMPLATE = Template("""/* Replays recorded observations through ${NAME}.c and compares. Made by surefoot. */
#include "${NAME}.h"

#include <stdio.h>
#include <stdlib.h>

static ${NAME}_state state;
static ${NAME}_obs obs[${BIG}_OBSERVATION];
static float wanted_params[${BIG}_PARAMS], wanted[${BIG}_ACTION], action[${BIG}_ACTION];
static const double scale[${BIG}_ACTION] = {$SCALES};

static int take(FILE *file, void *target, size_t size) { return fread(target, 1, size, file) == size; }

static double difference(float a, float b, double least)
{
    double gap = (double)a - (double)b, large = (double)b < 0 ? -(double)b : (double)b;
    return (gap < 0 ? -gap : gap) / (large > least ? large : least);
}

int main(int count, char **words)
{
    double worst_param = 0, worst_action = 0;
    long records = 0, ties = 0, wrong = 0;
    unsigned char begins;
    float margin;
$DECLARATIONS    int i;
    double allowed = count == 3 ? strtod(words[2], NULL) : $TOLERANCE;
    FILE *file = count == 2 || count == 3 ? fopen(words[1], "rb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: %s RECORDING [TOLERANCE]\\n", words[0]);
        return 2;
    }
    while (take(file, &begins, 1)) {
        if (!take(file, obs, sizeof obs)$READ_MASK
            || !take(file, wanted_params, sizeof wanted_params) || !take(file, wanted, sizeof wanted)
            || !take(file, &margin, sizeof margin)) {
            fprintf(stderr, "the recording is incomplete\\n");
            return 2;
        }
        records++;
        if (begins) {
            $BEGIN
        }
        if (${NAME}_step(obs, $MASK, &state, action)) wrong++;
        for (i = 0; i < ${BIG}_PARAMS; i++) {
            double gap = difference(state.params[i], wanted_params[i], 1);
            if (!(gap <= worst_param)) worst_param = gap;
        }
        for (i = 0; i < ${BIG}_ACTION; i++) {
            double gap = difference(action[i], wanted[i], scale[i] > 0 ? scale[i] : 1);
            if (scale[i] > 0) {
                if (!(gap <= worst_action)) worst_action = gap;
            } else if (action[i] != wanted[i]) {
                if (margin < ${NEAR_TIE}f) ties++;
                else wrong++;
            }
        }
    }
    fclose(file);
    printf("records=%ld params=%.3g actions=%.3g ", records, worst_param, worst_action);
    printf("ties=%ld wrong=%ld\\n", ties, wrong);
    return records == 0 || wrong || !(worst_param <= allowed) || !(worst_action <= allowed);
}
""")


def recording(program: ops.Program, trials: Trials, wanted: Expected, columns: Array) -> bytes:
    """The records that the test program reads. `columns`: the parameters that the export computes."""
    layout, count = program.layout, trials.count
    rows = trials.rows.reshape(count, -1)
    seen = rows[:, layout.learned]
    raw = seen if is_bytes(program) else seen.astype(np.float32) + starts(program)
    mask = np.zeros((count, 0), np.uint8) if layout.mask is None else (rows[:, layout.mask] > 0.5).astype(np.uint8)
    fields = [
        trials.begins.reshape(count, 1).astype(np.uint8),
        raw,
        mask,
        wanted.params.reshape(count, -1)[:, columns].astype(np.float32),
        wanted.action.reshape(count, -1).astype(np.float32),
        wanted.margin.reshape(count, 1).astype(np.float32),
    ]
    each = [np.ascontiguousarray(field).view(np.uint8).reshape(count, -1) for field in fields]
    return np.concatenate(each, axis=1).tobytes()


def replay_program(program: ops.Program, name: str, *, drawn: bool) -> str:
    """C source of a program that takes the name of a recording and prints the largest differences.

    It fails if one is larger than its second argument, which is TOLERANCE if it is not given.
    """
    big, masked = name.upper(), bool(program.layout.mask_size)
    begin = f"{name}_begin(&state);"
    if drawn:
        begin += f"\n            {name}_seed(&state, {big}_SEED + episodes++);"
    declared = f"    unsigned char mask[{big}_MASK];\n" if masked else ""
    return TEMPLATE.substitute(
        NAME=name,
        BIG=big,
        SCALES=", ".join(map(repr, scales(program))),
        DECLARATIONS=declared + ("    uint64_t episodes = 0;\n" if drawn else ""),
        READ_MASK=f"\n            || !take(file, mask, {big}_MASK)" if masked else "",
        MASK="mask" if masked else "NULL",
        BEGIN=begin,
        TOLERANCE=TOLERANCE,
        NEAR_TIE=NEAR_TIE,
    )
