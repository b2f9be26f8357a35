"""Collecting from envs on the host for a policy on a GPU, where observations are large: images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.host_storage import HostStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from surefoot.types import Array, Envs, Step

LARGE = 2**16  # bytes of a step's observations; smaller ones travel faster all together at the end


class UploadedStorage(HostStorage):
    """Observations are copied once on the host, into page-locked memory, and go to the device from there while the envs
    step on. So the policy finds them there, and the rollout is complete when its last step is.
    """

    on_device: Tensor  # [T+1, N, ...]

    def _lasting(self, rows: Tensor) -> Tensor:
        self.on_device = torch.zeros_like(rows, device=self.device)
        if self.device.type != "cuda":
            return rows
        try:
            return rows.pin_memory()
        except RuntimeError:  # the system locks no more: the host then waits for each copy
            return rows

    def _upload(self, t: int, own: slice) -> None:
        """The host waits for the actions of the next step before it writes here again, so it need not wait now."""
        self.on_device[t, own].copy_(self.obs[t, own], non_blocking=True)

    def start_with(self, obs: Array) -> None:
        super().start_with(obs)
        self._upload(0, slice(None))

    def continue_from(self, last: int) -> None:
        super().continue_from(last)
        self._upload(0, slice(None))

    def store(self, t: int, own: slice, step: Step, memory: Tensor | None) -> None:
        super().store(t, own, step, memory)
        self._upload(t + 1, own)

    def restore(self, obs: Tensor, start: Tensor, fresh: Mapping[int, Array]) -> None:
        super().restore(obs, start, fresh)
        self._upload(0, slice(None))

    def uploaded(self, used: int) -> Tensor:
        return self.on_device[: used + 1]


class UploadingCollector(Collector):
    """A collector whose policy is shown the observations on the device."""

    host_storage = UploadedStorage

    def shown(self, t: int, own: slice) -> Tensor:
        storage = self.storage
        assert isinstance(storage, UploadedStorage)
        return storage.on_device[t, own]


def are_large(envs: Envs) -> bool:
    """Whether the observations of a step are."""
    size: int = envs.layout.dtype.itemsize
    for side in (envs.num_envs, *envs.layout.shape):
        size *= side
    return size >= LARGE
