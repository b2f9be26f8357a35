"""Describes the loss and the optimizer of a gradient step to the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_char_p
from dataclasses import dataclass
from functools import cache

from surefoot.kernels.library import load
from surefoot.kernels.structs import LossSpec, OptimizerSpec


@dataclass(frozen=True, slots=True)
class Surrogate:
    """One of `src/surrogates.hpp`: its number there, and how many parameters it takes."""

    number: int
    parameters: int


@cache
def surrogates() -> dict[str, Surrogate]:
    """The surrogates of the compiled library, by name."""
    library = load("nn")
    library.sf_surrogates.restype, library.sf_surrogates.argtypes = c_char_p, []
    listed = (library.sf_surrogates() or b"").decode().split(";")
    pairs = (entry.split(":") for entry in listed if entry)
    return {name: Surrogate(number, int(count)) for number, (name, count) in enumerate(pairs)}


def loss_spec(
    surrogate: str,
    *parameters: float,
    kl_coef: float = 0.0,
    with_kl: bool = False,
    value_coef: float = 0.0,
    value_clip: float | None = None,
    huber: bool = False,
    with_value: bool = False,
    entropy_coef: float = 0.0,
) -> LossSpec:
    """−E[surrogate − kl_coef·KL] + value_coef·E[value loss] − entropy_coef·E[entropy].

    `parameters` are the surrogate's own: ε of "clip" and of "spo".
    """
    if (known := surrogates().get(surrogate)) is None:
        raise ValueError(f"the native kernels have no surrogate {surrogate!r}; they have {', '.join(surrogates())}")
    if len(parameters) != known.parameters:
        raise ValueError(f"{surrogate!r} takes {known.parameters} parameters, not {len(parameters)}")
    spec = LossSpec(
        surrogate=known.number,
        huber=huber,
        with_kl=with_kl or kl_coef != 0.0,
        with_value=with_value,
        kl_coef=kl_coef,
        value_coef=value_coef,
        value_clip=-1.0 if value_clip is None else value_clip,
        entropy_coef=entropy_coef,
    )
    spec.parameters[: len(parameters)] = parameters
    return spec


def optimizer_spec(kind: str, slices: Sequence[tuple[int, int, float]], max_grad_norm: float | None) -> OptimizerSpec:
    """`slices`: (begin, end, learning rate), at most two."""
    assert 1 <= len(slices) <= 2, slices
    spec = OptimizerSpec(kind != "rmsprop", len(slices))  # the caller keeps the clock of "adam-rel"
    for at, (begin, end, rate) in enumerate(slices):
        spec.begin[at], spec.end[at], spec.rate[at] = begin, end, rate
    spec.max_grad_norm = -1.0 if max_grad_norm is None else max_grad_norm
    return spec
