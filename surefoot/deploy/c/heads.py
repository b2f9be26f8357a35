"""C statements that choose an action: the most likely one, or a drawn one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.choosing import inside, num_noise
from surefoot.math.constants import BETA_EDGE, GAMMA_CANDIDATES, LEAST_STD

if TYPE_CHECKING:
    from surefoot.deploy.c.writer import Writer


def write_head(writer: Writer, head: ops.Head, params: list[str], first: int, noise: str | None) -> None:
    """`first`: the position of its numbers in the action; `noise`: where its random numbers are, if it is drawn."""
    if isinstance(head, ops.Choice):
        _choice(writer, head, params[0], first, noise)
    elif isinstance(head, ops.Bits):
        logit = f"({params[0]})[i]" if noise is None else f"({params[0]})[i] + ({noise})[i]"
        writer.loop(ops.width(head), f"action[{first} + i] = {logit} > 0 ? 1.f : 0.f;")
    elif isinstance(head, ops.BetaPeak):
        _beta(writer, head, params[0], first, noise)
    else:
        drawn = f"(real)({params[0]})[i]"
        if noise is not None:
            drawn += f" + {writer.call('own_exp')}((real)({params[1]})[i]) * (real)({noise})[i]"
        _bounded(writer, head, drawn, first)


def _choice(writer: Writer, head: ops.Choice, logits: str, first: int, noise: str | None) -> None:
    if noise is not None:
        writer.loop(sum(head.sizes), f"({noise})[i] += ({logits})[i];")
        logits = noise
    at = 0
    for number, (size, start) in enumerate(zip(head.sizes, head.start.tolist(), strict=True)):
        chosen = f"{writer.call('largest')}({logits} + {at}, {size})"
        writer.say(f"action[{first + number}] = (float)({chosen}{f' + {start}' if start else ''});")
        at += size


def _bounded(writer: Writer, head: ops.Clipped | ops.Squashed, drawn: str, first: int) -> None:
    clip = writer.call("clip")
    low, high = inside(head.low, head.high)
    if isinstance(head, ops.Squashed):
        centre, half = writer.reals(head.low / 2 + head.high / 2), writer.reals(head.high / 2 - head.low / 2)
        drawn = f"{centre}[i] + {half}[i] * {writer.call('own_tanh')}({drawn})"
    bounds = f"(real){writer.floats(low)}[i], (real){writer.floats(high)}[i]"
    writer.loop(ops.width(head), f"action[{first} + i] = (float){clip}({drawn}, {bounds});")


def _beta(writer: Writer, head: ops.BetaPeak, raw: str, first: int, noise: str | None) -> None:
    size, clip, softplus = ops.width(head), writer.call("clip"), writer.call("softplus")
    alpha, beta = f"{softplus}((real)({raw})[i])", f"{softplus}((real)({raw})[i + {size}])"
    low, high = inside(head.low, head.high)
    names = [writer.reals(head.low), writer.reals(head.high), writer.floats(low), writer.floats(high)]
    if noise is None:
        lines = [f"real a = {alpha}, b = {beta};", "real x = a + b > 0 ? a / (a + b) : (real)0.5;"]
    else:
        gamma, each = writer.call("gamma_variate"), GAMMA_CANDIDATES
        uniforms = f"{noise} + {2 * size * each}"
        lines = [
            f"real a = {gamma}(1 + {alpha}, {noise} + i * {each}, {uniforms} + i * {each});",
            f"real b = {gamma}(1 + {beta}, {noise} + (i + {size}) * {each}, {uniforms} + (i + {size}) * {each});",
            "real x = a / (a + b);",
        ]
    writer.say(
        f"for (i = 0; i < {size}; i++) {{",
        *(f"    {line}" for line in lines),
        f"    x = (real)(float){clip}(x, (real){BETA_EDGE!r}, 1 - (real){BETA_EDGE!r});",
        f"    x = {names[0]}[i] * (1 - x) + {names[1]}[i] * x;",
        f"    action[{first} + i] = (float){clip}(x, (real){names[2]}[i], (real){names[3]}[i]);",
        "}",
    )


def write_noise(writer: Writer, head: ops.Head, noise: str) -> None:
    """Draw the random numbers of a head."""
    if isinstance(head, (ops.Clipped, ops.Squashed)):
        writer.loop(num_noise(head), f"({noise})[i] = (float){writer.call('normal')}(&state->random);")
    elif isinstance(head, ops.BetaPeak):
        half = num_noise(head) // 2
        writer.loop(half, f"({noise})[i] = (float){writer.call('normal')}(&state->random);")
        writer.loop(half, f"({noise})[{half} + i] = (float){writer.call('log_uniform')}(&state->random);")
    else:
        kind = writer.call("logistic" if isinstance(head, ops.Bits) else "gumbel")
        writer.loop(num_noise(head), f"({noise})[i] = (float){kind}(&state->random);")


def write_exploration(writer: Writer, how: ops.Exploration, features: str, noise: str) -> None:
    """gSDE: redraw the matrix if it is time, and compute the noise of all Gaussian dimensions from it."""
    count, dimensions = how.log_std.shape
    std = writer.floats(np.exp(how.log_std))
    held = "state->held == 0" if how.resample is None else f"state->held == 0 || state->held == {how.resample}"
    writer.say(f"if ({held}) {{")
    writer.loop((count + 1) * dimensions, f"state->matrix[i] = (float){writer.call('normal')}(&state->random);")
    writer.say("    state->held = 0;", "}")
    writer.say("state->held = 1;" if how.resample is None else "state->held++;")
    writer.say(
        f"for (i = 0; i < {dimensions}; i++) {{",
        f"    real shift = (real){LEAST_STD!r} * (real)state->matrix[{count * dimensions} + i];",
        f"    real variance = (real){LEAST_STD**2!r};",
        f"    for (j = 0; j < {count}; j++) {{",
        f"        real part = (real)({features})[j] * (real){std}[j * {dimensions} + i];",
        f"        shift += part * (real)state->matrix[j * {dimensions} + i];",
        "        variance += part * part;",
        "    }",
        f"    ({noise})[i] = (float)(shift / {writer.call('own_sqrt')}(variance));",
        "}",
    )
