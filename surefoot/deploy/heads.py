"""Describes how the actor's outputs become the parameters of each part of an action."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from surefoot.deploy.program import (
    At,
    BetaPeak,
    Bits,
    Choice,
    Clipped,
    Constant,
    Head,
    Masked,
    SdeStd,
    Slice,
    Squashed,
    SquashMean,
    StateStd,
)
from surefoot.errors import UsageError
from surefoot.math.constants import LOG_STD_RANGE
from surefoot.schema import Misfit
from surefoot.spaces import plain

if TYPE_CHECKING:
    from surefoot.deploy.describe import Builder
    from surefoot.policies.config import PolicyConfig
    from surefoot.types import Array


def parts_of(space: plain.Space) -> Iterator[plain.Box | plain.Discrete | plain.MultiDiscrete | plain.MultiBinary]:
    """The simple spaces of an action space, depth first."""
    if isinstance(space, (plain.Dict, plain.Tuple)):
        for part in space.spaces.values() if isinstance(space, plain.Dict) else space.spaces:
            yield from parts_of(part)
    elif isinstance(space, plain.Other):
        raise UsageError(f"actions of {space} are not supported")
    else:
        yield space


def num_outputs(space: plain.Space, config: PolicyConfig) -> int:
    """Outputs of the actor's last layer."""
    return sum(_outputs(part, config) for part in parts_of(space))


def _outputs(part: plain.Space, config: PolicyConfig) -> int:
    if isinstance(part, plain.Discrete):
        return part.n
    if isinstance(part, plain.MultiDiscrete):
        return int(part.nvec.sum())
    if isinstance(part, plain.MultiBinary):
        return math.prod(part.shape)
    assert isinstance(part, plain.Box)
    doubled = config.action_bounds == "beta" or config.std == "state"
    return math.prod(part.shape) * (2 if doubled else 1)


def describe_heads(builder: Builder, features: At, outputs: At) -> tuple[tuple[Head, ...], Array | None]:
    """(the heads, the parameter `log_std` if there is one). `features`: the inputs of the actor's last layer."""
    config = builder.config
    parts = list(parts_of(builder.action_space))
    if not parts:
        raise Misfit("the action space is empty")
    gaussian = 0 if config.action_bounds == "beta" else sum(_numbers(p) for p in parts if isinstance(p, plain.Box))
    if config.tanh_mean and not gaussian:
        raise Misfit("tanh_mean needs continuous actions")
    log_std = None
    if gaussian and config.std != "state":
        shape = (builder.size(features), gaussian) if config.std == "gsde" else (gaussian,)
        log_std = builder.weights.take("log_std", shape)
    spread = None if log_std is None else _spread(builder, features, log_std)
    heads: list[Head] = []
    column = dimension = choice = 0
    for part in parts:
        wide = _outputs(part, config)
        own = outputs if wide == builder.size(outputs) else builder.add(Slice(outputs, column, wide))
        if isinstance(part, plain.Box):
            heads.append(_box(builder, part, own, spread, dimension))
            dimension += 0 if config.action_bounds == "beta" else _numbers(part)
        elif isinstance(part, plain.MultiBinary):
            heads.append(Bits(own, part.shape, part.dtype))
        else:
            heads.append(_choice(builder, part, own, choice))
            choice += wide
        column += wide
    return tuple(heads), log_std


def _numbers(part: plain.Box) -> int:
    return math.prod(part.shape)


def _spread(builder: Builder, features: At, log_std: Array) -> At:
    """The log std of every Gaussian dimension."""
    clipped = np.clip(log_std, *LOG_STD_RANGE)
    if builder.config.std == "gsde":
        return builder.add(SdeStd(features, np.exp(2.0 * clipped).astype(np.float32)))
    return builder.add(Constant(clipped))


def _choice(builder: Builder, part: plain.Discrete | plain.MultiDiscrete, own: At, first: int) -> Choice:
    """`first`: the position of the part's choices in the mask."""
    if builder.layout.mask_size:
        own = builder.add(Masked(own, first, builder.size(own)))
    if isinstance(part, plain.Discrete):
        return Choice(own, (part.n,), np.array([part.start], np.int64), (), part.dtype)
    sizes = tuple(int(n) for n in part.nvec.reshape(-1))
    if not sizes:
        raise Misfit("the action space has no dimension to act in")
    return Choice(own, sizes, part.start.astype(np.int64).reshape(-1), part.nvec.shape, part.dtype)


def _box(builder: Builder, part: plain.Box, own: At, spread: At | None, dimension: int) -> Head:
    """`dimension`: the position of the part among the Gaussian dimensions."""
    config, size = builder.config, _numbers(part)
    if part.dtype.kind != "f" or not size:
        raise Misfit(f"actions in {part} of {part.dtype} are not supported")
    low, high = part.low.reshape(-1), part.high.reshape(-1)
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if (config.action_bounds != "clip" or config.tanh_mean) and not finite:
        raise Misfit(f"action_bounds={config.action_bounds} needs bounds on all sides")
    wide = low.astype(np.float64), high.astype(np.float64)
    if config.action_bounds == "beta":
        return BetaPeak(own, *wide, part.shape, part.dtype)
    mean = own
    if spread is None:
        mean, raw = builder.add(Slice(own, 0, size)), builder.add(Slice(own, size, size))
        log_std = builder.add(StateStd(raw, size))
    else:
        log_std = spread if size == builder.size(spread) else builder.add(Slice(spread, dimension, size))
    if config.action_bounds == "tanh":
        return Squashed(mean, log_std, *wide, part.shape, part.dtype)
    if config.tanh_mean:
        near, far = low.astype(np.float32), high.astype(np.float32)
        mean = builder.add(SquashMean(mean, (near + far) / 2, (far - near) / 2))
    return Clipped(mean, log_std, low, high, part.shape, part.dtype)
