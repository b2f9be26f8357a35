"""Dict and Tuple actions, composed of the models of their parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.math.distributions import Composite, Part
from surefoot.policies.actions.model import ActionModel, MeanRange, Sender

if TYPE_CHECKING:
    from surefoot.types import Array


class CompositeActions:
    """`Dict` and `Tuple`, possibly nested: independent parts, in the space's order.

    Parameters, noise and masks of the parts are concatenated, and so are their actions: one float32 row, with whole
    numbers for discrete parts.
    """

    dtype = torch.float32

    def __init__(self, parts: Sequence[ActionModel], keys: Sequence[str] | None) -> None:
        """`keys`: the keys of a Dict; None for a Tuple."""
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
        self.kernel_parts = tuple(part for m in parts for part in m.kernel_parts)
        self.log_std_slices = _within(self._params, [m.log_std_slices for m in parts])
        self.gaussian_noise = _within(self._noise, [m.gaussian_noise for m in parts])
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
            own_std = None if log_std is None else log_std[..., own]
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

    def to_env(self, action: Array) -> list[object]:
        return self.to_each(action)

    def to_each(self, action: Array) -> list[object]:
        each = [m.to_each(own) for m, own in zip(self.models, self._split(action), strict=True)]
        return [self._join(row) for row in zip(*each, strict=True)]

    def to_vector_env(self, action: Array) -> object:
        return self._join([m.to_vector_env(own) for m, own in zip(self.models, self._split(action), strict=True)])

    def tensor_sender(self, device: torch.device) -> Sender:
        senders = [model.tensor_sender(device) for model in self.models]

        def send(action: Tensor) -> object:
            return self._join([sender(part.own(action)) for sender, part in zip(senders, self.parts, strict=True)])

        return send

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        if not self.num_clipped:
            return None
        each = [(m.num_clipped, m.clip_fraction(p.own(action))) for m, p in zip(self.models, self.parts, strict=True)]
        return torch.stack([n * cut for n, cut in each if cut is not None]).sum(0) / self.num_clipped

    def _split(self, action: Array) -> Iterator[Array]:
        for model, own in zip(self.models, self._action, strict=True):
            columns = action[..., own] if model.shape else action[..., own.start]
            yield columns if model.dtype.is_floating_point else columns.astype(np.int64)

    def _join(self, each: Sequence[object]) -> object:
        return tuple(each) if self.keys is None else dict(zip(self.keys, each, strict=True))


def _within(columns: Sequence[slice], inner: Sequence[tuple[slice, ...]]) -> tuple[slice, ...]:
    """Convert the parts' own slices to slices of the concatenated row."""
    return tuple(
        slice(at.start + own.start, at.start + own.stop)
        for at, each in zip(columns, inner, strict=True)
        for own in each
    )


def _slices(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(start, stop) for start, stop in pairwise(ends)]
