"""The engines with compiled kernels: for a whole policy, or for the parts that they support."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.collecting.stepping import step_all, step_parts
from surefoot.engine.contract import Engine, Threads
from surefoot.engine.native.apart import WorkerStepping
from surefoot.engine.native.collector import NativeCollector
from surefoot.engine.native.describe import NotServed, describe, parts_to_compile
from surefoot.engine.native.learner import NativeLearner, known
from surefoot.engine.native.networks import CompiledNetworks
from surefoot.engine.native.operations import CompiledOperations
from surefoot.engine.native.stepping import NativeStepping
from surefoot.engine.torch.engine import TorchEngine, make_learner, torch_threads_for
from surefoot.engine.torch.learner import Learner
from surefoot.envs.native_envs import NativeEnvs
from surefoot.envs.tensor_envs import device_of
from surefoot.envs.workers import WorkerEnvs
from surefoot.kernels.library import NotBuilt, load
from surefoot.types import SteppedInParts

if TYPE_CHECKING:
    from surefoot.engine.collecting.collector import Collector, Stepping
    from surefoot.engine.contract import Actor, CollectorOptions, LearnerOptions, Learns
    from surefoot.engine.losses import LossFunction
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Envs


class NativeEngine(Engine):
    """Acts, learns and steps classic control in compiled code, on the CPU."""

    name = acts_with = "native"
    may_use_kernels = True
    operations = CompiledOperations()

    def serves(self, policy: ActorCritic, algorithm: Learns, envs: Envs) -> str | None:
        try:
            check_kernels(policy, envs)
            describe(policy)
        except NotBuilt as reason:
            return str(reason)
        except NotServed as reason:
            return f"the kernels do not serve this policy: {reason}"
        return None

    def brings(self, policy: ActorCritic) -> str:
        return "the kernels serve this policy"

    def learns(self, loss: LossFunction) -> bool:
        return known(loss)

    def learner(self, policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner:
        learner = make_learner(NativeLearner, policy, algorithm, options)
        assert isinstance(learner, NativeLearner)
        learner.connect(None if options.threads == "auto" else options.threads, options.samples)
        learner.threads = Threads(learner.net.threads, asked=learner.net.asked)
        return learner

    def collector(self, envs: Envs, actor: Actor, options: CollectorOptions) -> Collector:
        stepping: Stepping = step_all
        if isinstance(envs, NativeEnvs):
            stepping = NativeStepping()
        elif isinstance(envs, WorkerEnvs) and options.episodes_per_env is None:
            stepping = WorkerStepping()
        elif isinstance(envs, SteppedInParts) and options.episodes_per_env is None:
            stepping = step_parts
        return NativeCollector(envs, actor, options, self.operations, stepping)


class HybridEngine(TorchEngine):
    """PyTorch with compiled MLPs and memory, for heads and encoders that the kernels do not support."""

    name = "hybrid"
    may_use_kernels = True

    def serves(self, policy: ActorCritic, algorithm: Learns, envs: Envs) -> str | None:
        try:
            check_kernels(policy, envs)
            parts_to_compile(policy)
        except (NotBuilt, NotServed) as reason:
            return str(reason)
        return None

    def brings(self, policy: ActorCritic) -> str:
        return "its MLPs are compiled" if policy.memory is None else "its MLPs and its memory are compiled"

    def learner(self, policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner:
        learner = make_learner(Learner, policy, algorithm, options)
        policy.compute_with(CompiledNetworks(policy, learner.flat, 1))
        learner.threads = torch_threads_for(policy, options.threads, options.samples)
        if learner.threads.number > 1:
            policy.compute_with(CompiledNetworks(policy, learner.flat, learner.threads.number))
        return learner


def check_kernels(policy: ActorCritic, envs: Envs) -> None:
    """Raise NotBuilt or NotServed if the kernels cannot be used, whatever the networks are."""
    device = policy.device
    if device.type != "cpu":
        raise NotServed(f"it runs on {device}")
    if device_of(envs) is not None:
        raise NotServed("its envs return tensors")
    load("nn")
