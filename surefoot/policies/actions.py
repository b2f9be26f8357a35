"""From an action space to a distribution, and from a drawn action to what the env accepts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.math.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    Composite,
    DiagGaussian,
    MultiCategorical,
    Part,
    TanhGaussian,
    mask_logits,
)

if TYPE_CHECKING:
    from surefoot.types import Array, Distribution

Bounds: TypeAlias = Literal["clip", "tanh", "beta"]
MeanRange: TypeAlias = "tuple[Tensor, Tensor]"  # centre and half-width of each Gaussian dimension
LOG_STD_RANGE = (-20.0, 5.0)  # beyond it a density overflows float32 long before it means anything
MOST_CHOICES = 2**24  # the largest whole number up to which a float32 keeps all


class ActionModel(Protocol):
    """How actions of one space are drawn, masked, stored and sent."""

    num_params: int  # A, of the distribution
    num_noise: int  # numbers that one draw takes
    num_gaussian: int  # Gaussian dimensions: means, and as many log stds
    num_clipped: int  # components that `clip_fraction` averages over
    mask_size: int  # choices that a mask can forbid
    shape: tuple[int, ...]  # of one stored action
    dtype: torch.dtype
    log_std_slices: tuple[slice, ...]  # where the log stds stand among the parameters

    def num_outputs(self, std: str) -> int:
        """Numbers that the network gives: without the log stds where those are a parameter (std "parameter")."""
        ...

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        """The distribution's parameters `[..., A]` from the network's outputs.

        `log_std` `[num_gaussian]`: those of the parameter; None: the network gives them, through a softplus, at
        `log_std_slices`. `mean_range` (each `[num_gaussian]`): squash the means, centre + half·tanh(·).
        """
        ...

    def gaussian_bounds(self) -> tuple[Array, Array]:
        """Lowest and highest action of each Gaussian dimension, float32 `[num_gaussian]`."""
        ...

    def distribution(self, params: Tensor) -> Distribution: ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor: ...

    def draw(self, params: Tensor, noise: Tensor) -> Tensor: ...

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """The parameters of the distribution over legal actions alone, of a mask `[..., mask_size]`."""
        ...

    def to_env(self, action: Array) -> Sequence[Any] | Array:
        """What to send, indexable by env."""
        ...

    def to_each(self, action: Array) -> list[Any]:
        """The actions of N envs, each a member of the space."""
        ...

    def to_vector_env(self, action: Array) -> Any:
        """What a `gymnasium.vector.VectorEnv` of these envs takes: arrays over the envs in the space's structure."""
        ...

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        """Share of each action's components that the env's bounds will cut; None where there is nothing to cut."""
        ...


class _Leaf:
    """What holds of one array of numbers, unless its model says otherwise: no Gaussian, no mask, nothing cut."""

    num_params: int
    num_gaussian = 0
    num_clipped = 0
    mask_size = 0
    log_std_slices: tuple[slice, ...] = ()

    def num_outputs(self, std: str) -> int:
        return self.num_params - (self.num_gaussian if std == "parameter" else 0)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return outputs

    def gaussian_bounds(self) -> tuple[Array, Array]:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return params

    def to_env(self, action: Array) -> Array:
        raise NotImplementedError

    def to_each(self, action: Array) -> list[Any]:
        sent = self.to_env(action)
        return [sent[index, ...] for index in range(len(sent))]  # the dots keep an array where the space has no axis

    def to_vector_env(self, action: Array) -> Any:
        return self.to_env(action)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        return None


class DiscreteActions(_Leaf):
    """`Discrete(n, start)`: a Categorical over 0..n−1; `start` is added on the way to the env."""

    shape: tuple[int, ...] = ()
    dtype = torch.int64

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_params, self.start = int(space.n), int(space.start)
        self.num_noise = self.mask_size = self.num_params
        self.env_dtype = None if space.dtype == np.int64 else space.dtype

    def distribution(self, params: Tensor) -> Categorical:
        return Categorical(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Categorical.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Categorical.draw(params, noise)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return mask_logits(params, mask)

    def to_env(self, action: Array) -> Array:
        sent = action + self.start if self.start else action
        return sent if self.env_dtype is None else sent.astype(self.env_dtype)

    def to_each(self, action: Array) -> list[Any]:
        return list(self.to_env(action))  # NumPy's integers, as the space itself samples them


class MultiDiscreteActions(_Leaf):
    """`MultiDiscrete(nvec, start)`: a Categorical for each variable, stored flat; `start` is added for the env."""

    dtype = torch.int64

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        self.env_shape, self.env_dtype = space.shape, space.dtype
        self.sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        self.start = space.start.astype(np.int64)
        self.num_params = self.num_noise = self.mask_size = sum(self.sizes)
        self.shape: tuple[int, ...] = (len(self.sizes),)
        self._begins = np.cumsum([0, *self.sizes[:-1]])

    def distribution(self, params: Tensor) -> MultiCategorical:
        return MultiCategorical(params, self.sizes)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return MultiCategorical.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return MultiCategorical.draw(params, noise, self.sizes)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return mask_logits(params, mask)

    def to_env(self, action: Array) -> Array:
        shaped = action.reshape(*action.shape[:-1], *self.env_shape)
        return (shaped + self.start).astype(self.env_dtype, copy=False)


class MultiBinaryActions(_Leaf):
    """`MultiBinary(shape)`: independent bits, stored flat. They take no mask: both values of a bit are always legal."""

    dtype = torch.int64

    def __init__(self, space: spaces.MultiBinary) -> None:
        self.env_shape, self.env_dtype = space.shape, space.dtype
        self.num_params = self.num_noise = math.prod(space.shape)
        self.shape: tuple[int, ...] = (self.num_params,)

    def distribution(self, params: Tensor) -> Bernoulli:
        return Bernoulli(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Bernoulli.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Bernoulli.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        return action.reshape(*action.shape[:-1], *self.env_shape).astype(self.env_dtype, copy=False)


class BoxActions(_Leaf):
    """`Box`: a diagonal Gaussian. The raw draw is stored and scored; the env receives it clipped to its bounds."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        self.env_shape = space.shape
        size = math.prod(space.shape)
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise, self.num_gaussian = 2 * size, size, size
        self.log_std_slices = (slice(size, 2 * size),)
        self.low, self.high, self.env_dtype = space.low, space.high, space.dtype
        self.bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
        self.num_clipped = size if self.bounded else 0

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return _gaussian_params(outputs, log_std, mean_range)

    def gaussian_bounds(self) -> tuple[Array, Array]:
        return self.low.astype(np.float32).reshape(-1), self.high.astype(np.float32).reshape(-1)

    def distribution(self, params: Tensor) -> DiagGaussian:
        return DiagGaussian.from_params(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return DiagGaussian.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return DiagGaussian.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        shaped = action.reshape(*action.shape[:-1], *self.env_shape)
        return np.clip(shaped, self.low, self.high).astype(self.env_dtype, copy=False)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        if not self.bounded:
            return None
        low = torch.from_numpy(self.low.reshape(-1)).to(action)
        high = torch.from_numpy(self.high.reshape(-1)).to(action)
        return ((action < low) | (action > high)).float().mean(-1)


class TanhBoxActions(_Leaf):
    """A bounded `Box`: u of a diagonal Gaussian is stored; the env receives centre + half·tanh(u)."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.env_dtype = *_finite_bounds(space, "tanh"), space.dtype
        self.centre, self.half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        self.log_half = float(np.log(self.half).sum())
        self.env_shape, size = space.shape, self.low.size
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise, self.num_gaussian = 2 * size, size, size
        self.log_std_slices = (slice(size, 2 * size),)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return _gaussian_params(outputs, log_std, mean_range)

    def gaussian_bounds(self) -> tuple[Array, Array]:
        """None: u is free."""
        return np.full(self.shape, -np.inf, np.float32), np.full(self.shape, np.inf, np.float32)

    def distribution(self, params: Tensor) -> TanhGaussian:
        return TanhGaussian.from_params(params, self.log_half)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return TanhGaussian.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return TanhGaussian.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        squashed = np.tanh(action.astype(np.float64).reshape(*action.shape[:-1], *self.env_shape))
        return _within(self.centre + self.half * squashed, self.low, self.high).astype(self.env_dtype)


class BetaBoxActions(_Leaf):
    """A bounded `Box`: x of a Beta on (0, 1) is stored; the env receives low + (high − low)·x."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.env_dtype = *_finite_bounds(space, "beta"), space.dtype
        self.log_width = float((np.log(self.high / 2 - self.low / 2) + math.log(2.0)).sum())
        self.env_shape, size = space.shape, self.low.size
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise = 2 * size, Beta.noise_size(2 * size)

    def distribution(self, params: Tensor) -> Beta:
        return Beta(params, self.log_width)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Beta.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Beta.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        x = action.astype(np.float64).reshape(*action.shape[:-1], *self.env_shape)
        return _within(self.low * (1.0 - x) + self.high * x, self.low, self.high).astype(self.env_dtype)


class CompositeActions:
    """`Dict` and `Tuple`, nested as they may be: independent parts, in the space's order.

    Parameters, noise and masks of the parts lie side by side, and so do their actions: one float32 row, whole numbers
    where a part is discrete.
    """

    dtype = torch.float32

    def __init__(self, parts: Sequence[ActionModel], keys: Sequence[str] | None) -> None:
        """`keys` are those of a Dict; None: a Tuple."""
        self.models, self.keys = parts, keys
        self._params = _slices([m.num_params for m in parts])
        self._noise = _slices([m.num_noise for m in parts])
        self._action = _slices([math.prod(m.shape) for m in parts])
        self._mask = _slices([m.mask_size for m in parts])
        self.num_params, self.num_noise = self._params[-1].stop, self._noise[-1].stop
        self.shape: tuple[int, ...] = (self._action[-1].stop,)
        self.mask_size = self._mask[-1].stop
        self.num_gaussian = sum(m.num_gaussian for m in parts)
        self.num_clipped = sum(m.num_clipped for m in parts)
        self.log_std_slices = tuple(
            slice(at.start + inner.start, at.start + inner.stop)
            for m, at in zip(parts, self._params, strict=True)
            for inner in m.log_std_slices
        )
        columns = zip(parts, self._params, self._action, self._noise, strict=True)
        self.parts = [Part(m.distribution, p, a, n, m.dtype, m.shape == ()) for m, p, a, n in columns]

    def num_outputs(self, std: str) -> int:
        return sum(m.num_outputs(std) for m in self.models)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        std = "state" if log_std is None else "parameter"
        of_outputs = _slices([m.num_outputs(std) for m in self.models])
        of_gaussian = _slices([m.num_gaussian for m in self.models])
        rows = []
        for model, columns, own in zip(self.models, of_outputs, of_gaussian, strict=True):
            own_std = None if log_std is None else log_std[own]
            own_range = None if mean_range is None else (mean_range[0][own], mean_range[1][own])
            rows.append(model.params_from(outputs[..., columns], own_std, own_range))
        return torch.cat(rows, dim=-1)

    def gaussian_bounds(self) -> tuple[Array, Array]:
        low, high = zip(*(m.gaussian_bounds() for m in self.models), strict=True)
        return np.concatenate(low), np.concatenate(high)

    def distribution(self, params: Tensor) -> Composite:
        return Composite(params, self.parts)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([m.noise(shape, generator) for m in self.models], dim=-1)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        pairs = zip(self.models, self.parts, strict=True)
        return torch.cat([p.column(m.draw(params[..., p.params], noise[..., p.noise])) for m, p in pairs], dim=-1)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        columns = zip(self.models, self._params, self._mask, strict=True)
        return torch.cat([m.masked(params[..., own], mask[..., legal]) for m, own, legal in columns], dim=-1)

    def to_env(self, action: Array) -> list[Any]:
        return self.to_each(action)

    def to_each(self, action: Array) -> list[Any]:
        each = [m.to_each(own) for m, own in zip(self.models, self._split(action), strict=True)]
        return [self._join(row) for row in zip(*each, strict=True)]

    def to_vector_env(self, action: Array) -> Any:
        return self._join([m.to_vector_env(own) for m, own in zip(self.models, self._split(action), strict=True)])

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        if not self.num_clipped:
            return None
        each = [(m.num_clipped, m.clip_fraction(p.own(action))) for m, p in zip(self.models, self.parts, strict=True)]
        return torch.stack([n * cut for n, cut in each if cut is not None]).sum(0) / self.num_clipped

    def _split(self, action: Array) -> Iterator[Array]:
        for model, own in zip(self.models, self._action, strict=True):
            columns = action[..., own] if model.shape else action[..., own.start]
            yield columns if model.dtype.is_floating_point else columns.astype(np.int64)

    def _join(self, each: Sequence[Any]) -> Any:
        return tuple(each) if self.keys is None else dict(zip(self.keys, each, strict=True))


def build_actions(space: spaces.Space[Any], bounds: Bounds = "clip") -> ActionModel:
    """The action model of a space, or an error that says what is supported.

    `bounds`: how the parts that are a Box keep to their bounds.
    """
    if isinstance(space, spaces.Dict):
        return CompositeActions(_parts(space, space.spaces.values(), bounds), list(space.spaces))
    if isinstance(space, spaces.Tuple):
        return CompositeActions(_parts(space, space.spaces, bounds), None)
    if isinstance(space, spaces.Box):
        return _box(space, bounds)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryActions(space)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        choices = int(space.n) if isinstance(space, spaces.Discrete) else sum(int(n) for n in space.nvec.reshape(-1))
        if choices == 0:
            raise UsageError(f"the action space {space} has no dimension to act in")
        if choices > MOST_CHOICES:
            raise UsageError(
                f"the action space {space} has {choices:,} choices, more than the {MOST_CHOICES:,} that a network can "
                "name one by one; wrap the env so that it takes several smaller choices (MultiDiscrete) or a Box"
            )
        return DiscreteActions(space) if isinstance(space, spaces.Discrete) else MultiDiscreteActions(space)
    reason = {
        spaces.Text: "a text has no fixed length",
        spaces.Sequence: "a sequence has no fixed length",
        spaces.Graph: "a graph has no fixed size",
        spaces.OneOf: "which of its spaces is chosen decides what the rest of the action means",
    }.get(type(space), "it is none of Gymnasium's own")
    raise UsageError(
        f"actions of {type(space).__name__} are not supported ({reason}); supported: Discrete, MultiDiscrete, "
        "MultiBinary, Box, and Dict and Tuple of these. Wrap the env so that it takes one of them."
    )


def _parts(space: spaces.Space[Any], inner: Any, bounds: Bounds) -> list[ActionModel]:
    parts = [build_actions(part, bounds) for part in inner]
    if not parts:
        raise UsageError(f"the action space {space} is empty: there is nothing to choose")
    return parts


def _box(space: spaces.Box, bounds: Bounds) -> ActionModel:
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"a Box of {space.dtype} actions is not supported; use Discrete or MultiDiscrete for whole numbers, "
            "or a Box of float32"
        )
    if 0 in space.shape:
        raise UsageError(f"the action space {space} has no dimension to act in")
    if bounds == "tanh":
        return TanhBoxActions(space)
    return BetaBoxActions(space) if bounds == "beta" else BoxActions(space)


def _finite_bounds(space: spaces.Box, bounds: str) -> tuple[Array, Array]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UsageError(
            f"action_bounds={bounds} needs a Box bounded on all sides, but this env has {space}; use action_bounds=clip"
        )
    if not (low < high).all():
        raise UsageError(
            f"action_bounds={bounds} needs low < high in every dimension, but this env has {space}; "
            "use action_bounds=clip"
        )
    return low, high


def _gaussian_params(outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None) -> Tensor:
    """Mean and log std side by side; see `ActionModel.params_from`."""
    if log_std is not None:
        mean, log_std = outputs, log_std.clamp(*LOG_STD_RANGE).expand_as(outputs)
    else:
        mean, raw = outputs.chunk(2, dim=-1)
        log_std = F.softplus(raw).clamp(min=math.exp(LOG_STD_RANGE[0])).log()
    if mean_range is not None:
        mean = mean_range[0] + mean_range[1] * torch.tanh(mean)
    return torch.cat([mean, log_std], dim=-1)


def _within(action: Array, low: Array, high: Array) -> Array:
    """Rounding may step over a bound; a bound is a number of the env's own type, so rounding to that will not."""
    return np.clip(action, low, high)


def _slices(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
