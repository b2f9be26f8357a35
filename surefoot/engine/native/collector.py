"""The collector of the native engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.host_storage import HostStorage
from surefoot.engine.native.actor import NativeActor
from surefoot.kernels.stored import StoredActing

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Stepping
    from surefoot.engine.contract import Actor, CollectorOptions
    from surefoot.math.operations import Operations
    from surefoot.policies.actor_critic import NoiseRows
    from surefoot.types import Envs


class NativeCollector(Collector):
    """Acts on the arrays of the storage in one call per step, if the network takes them as they are."""

    def __init__(
        self, envs: Envs, actor: Actor, options: CollectorOptions, operations: Operations, stepping: Stepping
    ) -> None:
        super().__init__(envs, actor, options, operations, stepping)
        self.stored: StoredActing | None = None
        self._begun: NoiseRows | None = None  # the noise of the rollout that `stored` has begun
        storage = self.storage
        assert isinstance(actor, NativeActor)
        assert isinstance(storage, HostStorage)
        if takes_raw_rows(actor, storage.obs):
            self.stored = StoredActing(actor.net, storage.obs, storage.params, storage.action, storage.log_prob)

    def choose(self, t: int, own: slice, noise: NoiseRows, memory: Tensor | None) -> object:
        stored, actor, storage = self.stored, self.actor, self.storage
        if stored is None:
            return super().choose(t, own, noise, memory)
        assert isinstance(actor, NativeActor)
        if noise is not self._begun:
            normalizer, self._begun = self.policy.normalizer, noise
            scaling = None if normalizer is None else (normalizer._shift, normalizer._scale)
            stored.begin(actor.theta, noise.rows, scaling, None if memory is None else storage.start, memory)
        stored.act(t, own)
        return storage.to_env(t, own)


def takes_raw_rows(actor: NativeActor, obs: Tensor) -> bool:
    """Whether the kernels' inputs are the stored observations, at most normalised as a whole."""
    policy, normalizer = actor.policy, actor.policy.normalizer
    if policy.encoder is not None or policy.config.critic_obs or policy.raw_inputs or obs.dtype != torch.float32:
        return False
    return obs[0, 0].numel() == actor.net.width and (normalizer is None or normalizer._active is None)
