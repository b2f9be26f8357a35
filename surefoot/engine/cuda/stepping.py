"""A whole rollout of envs that run on the device: as one Triton kernel, or as one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.policies.actor_critic import NoiseRows

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.cuda.recorder import Recorder, Work
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.kernels.fused_rollout import Played
    from surefoot.policies.actor_critic import ActorCritic


CLOSE, NEARLY_ALL = 1e-4, 0.99  # a kernel's first step to PyTorch's, and in how many envs: a draw may be a near tie


class RecordedStepping:
    """Records all steps of policy and envs together. The reference is `collecting.stepping.step_all`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._noise: NoiseRows | None = None
        self._memory: Tensor | None = None
        self._work: Work | None = None

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        with own_modes(gradients=False):
            return self._play(collector, noise, memory)

    def _play(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
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
        return self.recorder.record("the rollout", work, storage.device, changed + ([] if memory is None else [memory]))


class FusedStepping:
    """Plays rollouts by one kernel, if its first step is that of `step_all`; otherwise `RecordedStepping` does."""

    def __init__(self, recorder: Recorder, nets: WholeNets) -> None:
        self.recorder, self.nets = recorder, nets
        self._places: Played | None = None
        self._tried = False
        self._instead: RecordedStepping | None = None

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        with own_modes(gradients=False):
            return self._play(collector, noise, memory)

    def _play(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        if not self._tried:
            self._tried = True
            reason = self._disagrees(collector, noise)
            if reason is not None:
                self._instead = RecordedStepping(self.recorder)
                self.recorder.notices.append(f"the rollout is not one kernel, which would be faster: {reason}")
            else:
                assert isinstance(collector.storage, DeviceStorage)
                limit = collector.envs.time_limit
                shorter = limit is None or collector.length <= limit
                collector.storage.one_cut = shorter and not collector.reset_each_rollout
        if self._instead is not None:
            return self._instead(collector, noise, memory)
        with collector.timer.phase("act"):
            self.play(collector, noise)
        return collector.length

    @property
    def plays(self) -> bool:
        """Whether the kernel was tried and is used."""
        return self._tried and self._instead is None

    def places(self, storage: DeviceStorage) -> Played:
        """Where the kernel puts a rollout."""
        self._places = self._places or storage.places()
        return self._places

    def play(self, collector: Collector, noise: NoiseRows) -> None:
        from surefoot.kernels.fused_rollout import play

        envs, normalizer = collector.envs, collector.policy.normalizer
        assert isinstance(envs, DeviceEnvs)
        assert isinstance(collector.storage, DeviceStorage)
        places = self.places(collector.storage)
        scaled = None if normalizer is None else normalizer.shift_and_scale
        play(self.nets.theta, self.nets.actor, scaled, envs.world(), noise.rows, places)
        envs.played(collector.length)

    def _disagrees(self, collector: Collector, noise: NoiseRows) -> str | None:
        """Why the kernel cannot be used: it fails, or its first step is another than PyTorch's. Changes no env."""
        envs, storage = collector.envs, collector.storage
        assert isinstance(envs, DeviceEnvs)
        assert isinstance(storage, DeviceStorage)
        places = self.places(storage)
        before, found = [tensor.clone() for tensor in envs.tensors], []
        try:
            for fused in (True, False):
                if fused:
                    self.play(collector, noise)
                else:
                    step_all(collector, noise, None)
                found.append(torch.cat([places.params[0], places.obs[1], places.reward[0, :, None].float()], 1))
                for tensor, old in zip(envs.tensors, before, strict=True):
                    tensor.copy_(old)
        except Exception as broken:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
            return f"Triton failed: {str(broken).strip().partition(chr(10))[0]}"
        near = ((found[0] - found[1]).abs() < CLOSE * self.nets.slack).all(1).float().mean()
        return (
            None if float(near) >= NEARLY_ALL else f"its first step is another in {1.0 - float(near):.0%} of the envs"
        )


def can_play(envs: DeviceEnvs, nets: WholeNets | None, policy: ActorCritic) -> bool:
    """Whether the kernel knows these envs and this policy."""
    normalizer = policy.normalizer
    return nets is not None and envs.fused and (normalizer is None or normalizer.shift_and_scale is not None)
