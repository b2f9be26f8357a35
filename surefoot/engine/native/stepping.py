"""A whole rollout of native envs in one call of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gymnasium import spaces

from surefoot.engine.collecting.host_storage import HostStorage
from surefoot.engine.episodes import Episode
from surefoot.engine.native.actor import NativeActor
from surefoot.envs.native_envs import NativeEnvs
from surefoot.kernels.rollout import NativeRollout

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.policies.actor_critic import NoiseRows


class NativeStepping:
    """Steps policy and envs together in compiled code. The reference is `collecting.stepping.step_all`."""

    def __init__(self) -> None:
        self._rollout: NativeRollout | None = None

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        rollout = self._rollout = self._rollout or self._prepare(collector)
        envs, storage, tracker, actor = collector.envs, collector.storage, collector.tracker, collector.actor
        assert isinstance(envs, NativeEnvs)
        assert isinstance(storage, HostStorage)
        assert isinstance(actor, NativeActor)
        normalizer = collector.policy.normalizer
        scaling = None if normalizer is None else (normalizer._shift, normalizer._scale)
        with collector.timer.phase("act"):
            used = rollout.run(actor.theta, noise.rows, scaling, tracker.ret, tracker.length, memory)
        if used < 0:
            envs.fault(*divmod(-1 - used, envs.num_envs), rollout.arrays)
        envs.envs.obs[...] = rollout.arrays["obs"][used]
        storage.final = rollout.finals()
        storage.final_memory = [] if memory is None else list(torch.from_numpy(rollout.final_memories()))
        tracker.finished += [Episode(env, ret, length, truncated=cut) for env, ret, length, cut in rollout.episodes()]
        wanted = collector.episodes_per_env
        if wanted is not None:
            ends = (storage.terminated[:used] | storage.truncated[:used]) & storage.valid[:used]
            if not bool((ends.sum(0) >= wanted).all()):
                raise collector.past_limit()
        return used

    @staticmethod
    def _prepare(collector: Collector) -> NativeRollout:
        envs, storage, actor = collector.envs, collector.storage, collector.actor
        assert isinstance(envs, NativeEnvs)
        assert isinstance(storage, HostStorage)
        assert isinstance(actor, NativeActor)
        names = ["obs", "params", "action", "log_prob", "terminated", "truncated", "valid"]
        names += [] if collector.policy.memory is None else ["start"]
        arrays = {name: getattr(storage, name).numpy() for name in names} | {"reward": storage.reward}
        space, bounds = envs.action_space, None
        if isinstance(space, spaces.Box):
            bounds = (float(space.low[0]), float(space.high[0]))
        return NativeRollout(actor.net, envs.envs, arrays, bounds, collector.episodes_per_env or 0)
