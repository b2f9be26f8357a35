"""Chooses the numbers of an action from the parameters of its distribution, and brings them into the env's form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy import program as ops
from surefoot.deploy.interpret import softplus
from surefoot.math.constants import BETA_EDGE, GAMMA_CANDIDATES, LEAST_STD
from surefoot.spaces import plain

if TYPE_CHECKING:
    from surefoot.types import Array

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Noise:
    """The random numbers of one step of n envs, in the order that `policies/` uses."""

    rows: Array  # [n, num_noise]
    matrix: Array | None = None  # [n, features + 1, Gaussian dimensions]: gSDE


def num_noise(head: ops.Head) -> int:
    if isinstance(head, ops.BetaPeak):
        return 4 * GAMMA_CANDIDATES * ops.width(head)
    return sum(head.sizes) if isinstance(head, ops.Choice) else ops.width(head)


def draw_noise(program: ops.Program, count: int, generator: np.random.Generator) -> Noise:
    rows = [_noise_of(head, count, generator) for head in program.heads]
    matrix = None
    if program.exploration is not None:
        features, dimensions = program.exploration.log_std.shape
        matrix = generator.standard_normal((count, features + 1, dimensions), np.float32)
    return Noise(np.concatenate(rows, axis=1), matrix)


def _noise_of(head: ops.Head, count: int, generator: np.random.Generator) -> Array:
    shape = (count, num_noise(head))
    if isinstance(head, (ops.Clipped, ops.Squashed)):
        return generator.standard_normal(shape, np.float32)
    if isinstance(head, ops.BetaPeak):
        half = (count, shape[1] // 2)
        log_uniform = np.log(np.maximum(generator.random(half, np.float32), TINY))
        return np.concatenate([generator.standard_normal(half, np.float32), log_uniform], axis=1)
    uniform = np.maximum(generator.random(shape, np.float32), TINY)
    if isinstance(head, ops.Bits):
        return np.log(uniform) - np.log1p(-np.minimum(uniform, 1 - 2.0**-24))
    return -np.log(np.maximum(-np.log(uniform), TINY))


def choose(program: ops.Program, results: dict[ops.At, Array], noise: Noise | None) -> list[Array]:
    """For each head `[n, numbers]`, as the env counts them: the most likely ones if `noise` is None."""
    each: list[Array] = []
    rows = None if noise is None else _own_noise(program, results, noise)
    for head in program.heads:
        own = None if rows is None else next(rows)
        params = [results[at] for at in ops.params_of(head)]
        if isinstance(head, ops.Choice):
            logits = params[0] if own is None else params[0] + own
            each.append(_likeliest(logits, head.sizes) + head.start)
        elif isinstance(head, ops.Bits):
            each.append((params[0] if own is None else params[0] + own) > 0)
        elif isinstance(head, ops.BetaPeak):
            x = (beta_peak(params[0]) if own is None else beta_draw(params[0], own)).astype(np.float64)
            each.append(np.clip(head.low * (1.0 - x) + head.high * x, head.low, head.high))
        else:
            drawn = params[0] if own is None else params[0] + np.exp(params[1]) * own
            each.append(_bounded(head, drawn))
    return each


def _bounded(head: ops.Clipped | ops.Squashed, drawn: Array) -> Array:
    if isinstance(head, ops.Clipped):
        return np.clip(drawn, head.low, head.high)
    centre, half = head.low / 2 + head.high / 2, head.high / 2 - head.low / 2
    return np.clip(centre + half * np.tanh(drawn.astype(np.float64)), head.low, head.high)


def _likeliest(logits: Array, sizes: tuple[int, ...]) -> Array:
    """`[n, variables]`: the first largest of each variable's logits."""
    ends = pairwise(accumulate(sizes, initial=0))
    return np.stack([logits[:, first:last].argmax(axis=1) for first, last in ends], axis=1)


def inside(low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds as float32, rounded to the inside, because the env's own bounds may be doubles."""
    near, far = low.astype(np.float32), high.astype(np.float32)
    near = np.where(near < low, np.nextafter(near, np.float32(np.inf)), near)
    return near, np.where(far > high, np.nextafter(far, np.float32(-np.inf)), far)


def beta_peak(raw: Array) -> Array:
    """(α − 1)/(α + β − 2); ½ where both are 1."""
    alpha, beta = np.split(softplus(raw.astype(np.float64)), 2, axis=1)  # each less 1
    total = alpha + beta
    peak = np.where(total > 0, alpha / np.maximum(total, np.finfo(np.float64).tiny), 0.5)
    return np.clip(peak, BETA_EDGE, 1 - BETA_EDGE).astype(raw.dtype)


def beta_draw(raw: Array, noise: Array) -> Array:
    """X/(X + Y) of two gamma variates (Marsaglia & Tsang 2000): the first accepted candidate of each, or the last."""
    shape = 1.0 + softplus(raw.astype(np.float64))
    normal, log_uniform = (half.reshape(*shape.shape, -1) for half in np.split(noise, 2, axis=1))
    d = (shape - 1 / 3)[..., None]
    root = 1 + normal / np.sqrt(9 * d)
    v = np.maximum(root, 1e-6) ** 3
    accepted = (root > 0) & (log_uniform < 0.5 * normal * normal + d * (1 - v + np.log(v)))
    accepted[..., -1] = True
    first = accepted.argmax(axis=-1)[..., None]
    x, y = np.split((d * np.take_along_axis(v, first, -1))[..., 0], 2, axis=1)
    part: Array = np.clip(x / (x + y), BETA_EDGE, 1 - BETA_EDGE)
    return part.astype(raw.dtype)


def _own_noise(program: ops.Program, results: dict[ops.At, Array], noise: Noise) -> Iterator[Array]:
    """The noise of each head; gSDE's replaces the Gaussian noise."""
    explored, column, dimension = sde_noise(program, results, noise), 0, 0
    for head in program.heads:
        wide = num_noise(head)
        if explored is not None and isinstance(head, (ops.Clipped, ops.Squashed)):
            yield explored[:, dimension : dimension + wide]
            dimension += wide
        else:
            yield noise.rows[:, column : column + wide]
        column += wide


def sde_noise(program: ops.Program, results: dict[ops.At, Array], noise: Noise) -> Array | None:
    """φ(s)ᵀ(σ ⊙ E) / √v(s), `[n, Gaussian dimensions]`: standard normal over the matrix E."""
    how = program.exploration
    if how is None:
        return None
    assert noise.matrix is not None
    features = results[how.features]
    shift = (features[:, None] @ (np.exp(how.log_std) * noise.matrix[:, :-1]))[:, 0] + LEAST_STD * noise.matrix[:, -1]
    variance = (features * features) @ np.exp(2 * how.log_std) + LEAST_STD**2
    noise_of_all: Array = shift / np.sqrt(variance)
    return noise_of_all.astype(features.dtype)


def to_env(program: ops.Program, actions: list[Array], *, single: bool) -> object:
    """The numbers of each head in the structure of the space: for one env (`single`), or as arrays over the envs."""
    parts: list[object] = []
    for head, numbers in zip(program.heads, actions, strict=True):
        shaped = numbers.reshape(len(numbers), *head.shape).astype(head.dtype)
        scalar = isinstance(head, ops.Choice) and not head.shape
        parts.append(shaped if not single else shaped[0] if scalar else shaped[0, ...])
    return _joined(program.action_space, iter(parts))


def paths(space: plain.Space, path: str = "") -> Iterator[str]:
    """The path of each part of an action space, depth first: "" for a simple space, "arm/0"."""
    inner: list[tuple[str, plain.Space]] = []
    if isinstance(space, plain.Dict):
        inner = [(str(key), part) for key, part in space.spaces.items()]
    elif isinstance(space, plain.Tuple):
        inner = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        yield path
    for key, part in inner:
        yield from paths(part, f"{path}/{key}" if path else key)


def _joined(space: plain.Space, parts: Iterator[object]) -> object:
    if isinstance(space, plain.Dict):
        return {key: _joined(part, parts) for key, part in space.spaces.items()}
    if isinstance(space, plain.Tuple):
        return tuple(_joined(part, parts) for part in space.spaces)
    return next(parts)
