"""A whole rollout of envs that run on the device as one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.stepping import step_all
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.policies.actor_critic import NoiseRows

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.cuda.recorder import Recorder, Work


class RecordedStepping:
    """Records all steps of policy and envs together. The reference is `collecting.stepping.step_all`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._noise: NoiseRows | None = None
        self._memory: Tensor | None = None
        self._work: Work | None = None

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        if self._work is None or self._noise is None:
            self._noise = noise  # its place from now on
            self._memory = None if memory is None else memory.clone()
            self._work = self._record(collector, noise, self._memory)
        self._noise.rows.copy_(noise.rows)
        if self._noise.matrices is not None and noise.matrices is not None:
            self._noise.matrices.copy_(noise.matrices)
        if self._memory is not None and memory is not None:
            self._memory.copy_(memory)
        with collector.timer.phase("act"):
            self._work()
        if self._memory is not None and memory is not None:
            memory.copy_(self._memory)
        return collector.length

    def _record(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> Work:
        envs, storage = collector.envs, collector.storage
        assert isinstance(envs, DeviceEnvs)
        assert isinstance(storage, DeviceStorage)

        def work() -> None:
            step_all(collector, noise, memory)

        changed = [*envs.tensors, storage.obs, storage.start, *collector.policy.buffers()]
        with torch.no_grad():
            return self.recorder.record(
                "the rollout", work, storage.device, changed + ([] if memory is None else [memory])
            )
