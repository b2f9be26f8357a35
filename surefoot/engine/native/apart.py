"""Rollouts of envs in workers that act on their own, each with a copy of the policy."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from gymnasium import spaces

from surefoot.engine.collecting.host_storage import HostStorage
from surefoot.engine.collecting.stepping import step_parts
from surefoot.engine.native.actor import NativeActor
from surefoot.engine.native.collector import NativeCollector
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers.rollouts import Form, WorkerRollouts

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.policies.actor_critic import NoiseRows


class WorkerStepping:
    """Whole rollouts in the workers if the kernels take the observations as they are. The reference is `step_parts`."""

    def __init__(self) -> None:
        self._rollouts: WorkerRollouts | None = None

    @property
    def acts(self) -> bool:
        """Whether the workers act, and not this process; known after the first rollout."""
        return self._rollouts is not None and not self._rollouts.why_not

    def __call__(self, collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
        assert isinstance(collector, NativeCollector)
        if collector.stored is None or isinstance(collector.envs.action_space, (spaces.Dict, spaces.Tuple)):
            return step_parts(collector, noise, memory)
        rollouts = self._rollouts = self._rollouts or self._prepare(collector)
        if not self.acts:
            return step_parts(collector, noise, memory)
        storage, actor, timer, arrays = collector.storage, collector.actor, collector.timer, rollouts.arrays
        assert isinstance(storage, HostStorage)
        assert isinstance(actor, NativeActor)
        with timer.phase("act"):
            rollouts.begin()
            arrays["obs"][0], arrays["start"][0] = storage.obs[0].numpy(), storage.start[0].numpy()
            arrays["theta"][:], arrays["noise"][...] = actor.theta.numpy(), noise.rows.numpy()
            if (normalizer := collector.policy.normalizer) is not None:
                arrays["scaling"][0], arrays["scaling"][1] = normalizer._shift.numpy(), normalizer._scale.numpy()
            if memory is not None:
                arrays["memory"][...] = memory.numpy()
        start = perf_counter()
        reports = rollouts.play()
        acting, stepping = (sum(report["seconds"][k] for report in reports) for k in (0, 1))
        passed, share = perf_counter() - start, acting / max(acting + stepping, 1e-9)
        timer.add("act", share * passed)
        timer.add("env", (1.0 - share) * passed)
        with timer.phase("act"):
            storage.store_all(arrays, rollouts.infos(reports))
            if memory is not None:
                memory.numpy()[...] = arrays["memory"]
        return collector.length

    @staticmethod
    def _prepare(collector: NativeCollector) -> WorkerRollouts:
        envs, actor, policy = collector.envs, collector.actor, collector.policy
        assert isinstance(envs, WorkerEnvs)
        assert isinstance(actor, NativeActor)
        action = collector.storage.action.numpy()
        form = Form(
            length=collector.length,
            action=(action.shape[2:], action.dtype.str),
            params=policy.actions.num_params,
            noise=policy.actions.num_noise,
            bounds=policy.config.action_bounds,
            normalized=policy.normalizer is not None,
        )
        return WorkerRollouts(envs, actor.net.description.tables(), form)
