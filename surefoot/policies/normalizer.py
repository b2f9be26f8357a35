"""Observation normalisation as part of the policy: saved, loaded and frozen with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.math.constants import LEAST_VARIANCE, NORMALIZED_CLIP
from surefoot.math.device_moments import merged
from surefoot.math.moments import RunningMoments
from surefoot.math.operations import OPERATIONS, Operations

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout


class ObservationNormalizer(nn.Module):
    """x ↦ clip((x − mean) / √(var + 1e-8), ±10), one set of statistics for all envs of a run.

    Frozen while a rollout is collected and learned from, so that the first ratio is 1; `merge` adds the rollout's valid
    observations afterwards. The buffers are float64 so that saving loses nothing.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    _active: Tensor | None
    _shift: Tensor
    _scale: Tensor

    def __init__(self, shape: tuple[int, ...], active: Tensor | None = None) -> None:
        """`active`: the numbers of a row to normalise (not choices, images and masks); None: all."""
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64, device="cpu"))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64, device="cpu"))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64, device="cpu"))
        self.register_buffer("_shift", torch.zeros(shape, dtype=torch.float32, device="cpu"), persistent=False)
        self.register_buffer("_scale", torch.ones(shape, dtype=torch.float32, device="cpu"), persistent=False)
        self.register_buffer("_active", active, persistent=False)
        self.register_load_state_dict_post_hook(lambda *_: self.refresh())  # type: ignore[no-untyped-call]

    def forward(self, obs: Tensor) -> Tensor:
        normalized = ((obs - self._shift) * self._scale).clamp_(-NORMALIZED_CLIP, NORMALIZED_CLIP)
        return normalized if self._active is None else torch.where(self._active, normalized, obs)

    @property
    def shift_and_scale(self) -> tuple[Tensor, Tensor] | None:
        """For x ↦ clip((x − shift) · scale, ±10); None if some numbers stay as they are."""
        return None if self._active is not None else (self._shift, self._scale)

    def merge(self, obs: Tensor, valid: Tensor | None = None, operations: Operations = OPERATIONS) -> None:
        """Update with observations `[B, *shape]`, or with the `valid` ones of `[T, N, *shape]`, on their device."""
        if obs.is_cpu:
            rows = obs if valid is None else obs[valid]
            running = RunningMoments(tuple(self.mean.shape))
            running.load_state_dict({"count": self.count.item(), "mean": self.mean.numpy(), "var": self.var.numpy()})
            running.merge(rows.numpy(), operations.moments, operations.combined)
            for name, value in running.state_dict().items():
                getattr(self, name).copy_(torch.from_numpy(np.asarray(value)))
        else:
            rows = obs.to(self.mean.dtype).reshape(-1, *self.mean.shape)
            weight = rows.new_ones(len(rows)) if valid is None else valid.flatten()
            found = merged((self.count, self.mean, self.var), rows, weight, operations.sum_)
            for buffer, new in zip((self.count, self.mean, self.var), found, strict=True):
                buffer.copy_(new)
        self.refresh()

    def refresh(self) -> None:
        """Rebuild the float32 shift and scale from the statistics; loading and merging do this automatically."""
        self._shift.copy_(self.mean)
        self._scale.copy_((self.var + LEAST_VARIANCE).rsqrt())


def build_normalizer(layout: Layout) -> ObservationNormalizer | None:
    """A normaliser for the vectors among the leaves; None if there are none."""
    vectors = [leaf for leaf in layout.leaves if leaf.kind == "vector"]
    if not vectors:
        return None
    if layout.plain:
        return ObservationNormalizer(layout.shape)
    active = torch.zeros(layout.shape, dtype=torch.bool, device="cpu")
    for leaf in vectors:
        active[leaf.span] = True
    return ObservationNormalizer(layout.shape, active)
