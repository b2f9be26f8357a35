"""The engine for NVIDIA GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.stepping import step_all, step_parts
from surefoot.engine.contract import Engine, Threads
from surefoot.engine.cuda.actor import RecordedActor
from surefoot.engine.cuda.between_steps import BetweenSteps
from surefoot.engine.cuda.collector import UploadingCollector, are_large
from surefoot.engine.cuda.fused import fused_networks, not_fused
from surefoot.engine.cuda.head_loss import head_of
from surefoot.engine.cuda.iteration import WholeIterations, not_whole
from surefoot.engine.cuda.learner import CudaLearner
from surefoot.engine.cuda.networks import RecordedNetworks
from surefoot.engine.cuda.operations import DeviceOperations
from surefoot.engine.cuda.population.iteration import Parts
from surefoot.engine.cuda.population.members import Members
from surefoot.engine.cuda.population.serving import not_together
from surefoot.engine.cuda.recorder import Recorder
from surefoot.engine.cuda.stepping import FusedStepping, RecordedStepping, can_play
from surefoot.engine.torch.engine import make_learner
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.types import InEqualParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from surefoot.engine.collecting.collector import Stepping
    from surefoot.engine.contract import Actor, CollectorOptions, LearnerOptions, Learns
    from surefoot.engine.names import Precision
    from surefoot.engine.torch.learner import Learner
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Envs


class CudaEngine(Engine):
    """PyTorch on a GPU, with gradient steps, what we do between two steps of a simulator, and whole rollouts of our own
    envs as CUDA graphs.
    """

    name = acts_with = "cuda"
    operations = DeviceOperations()

    def __init__(self) -> None:
        self.recorder = Recorder()

    def serves(self, policy: ActorCritic, algorithm: Learns, envs: Envs) -> str | None:
        return None if policy.device.type == "cuda" else f"the policy is on {policy.device}, not on a GPU"

    def brings(self, policy: ActorCritic) -> str:
        return "CUDA graphs" if not_fused(policy) else "CUDA graphs with fused layers"

    def learner(self, policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner:
        learner = make_learner(CudaLearner, policy, algorithm, options)
        assert isinstance(learner, CudaLearner)
        networks = self._networks(policy, learner, options.precision)
        policy.compute_with(networks)
        head = head_of(policy) if policy.device.type == "cuda" else None
        learner.connect(
            self.recorder,
            networks.whole,
            fixed_length=algorithm.episodes_per_env is None,
            head=None if isinstance(head, str) else head,
        )
        learner.threads = Threads(1)
        return learner

    def _networks(self, policy: ActorCritic, learner: CudaLearner, precision: Precision) -> RecordedNetworks:
        """The fastest for a policy whose parameters are those of the learner."""
        if policy.device.type == "cuda":
            fused = fused_networks(policy, learner.flat.vector, precision)
            if not isinstance(fused, str):
                return fused
            if not_fused(policy) is None:
                self.recorder.notices.append(f"the layers of the policy are not fused, which would be faster: {fused}")
        return RecordedNetworks(policy)

    def collector(self, envs: Envs, actor: Actor, options: CollectorOptions) -> Collector:
        stepping: Stepping = step_all
        if isinstance(envs, DeviceEnvs) and options.episodes_per_env is None:
            nets = actor.nets if isinstance(actor, RecordedActor) else None
            if nets is not None and can_play(envs, nets, actor.policy):
                stepping = FusedStepping(self.recorder, nets)
            else:
                stepping = RecordedStepping(self.recorder)
        elif isinstance(envs, TensorEnvs) and envs.device == actor.policy.device and options.episodes_per_env is None:
            stepping = BetweenSteps(self.recorder)
        elif isinstance(envs, InEqualParts) and envs.equal_parts and options.episodes_per_env is None:
            stepping = step_parts
        if not isinstance(envs, TensorEnvs) and are_large(envs):
            return UploadingCollector(envs, actor, options, self.operations, stepping)
        return Collector(envs, actor, options, self.operations, stepping)

    def iterations(self, collector: Collector, learner: Learner, algorithm: Learns) -> WholeIterations | None:
        if not isinstance(learner, CudaLearner) or not_whole(collector, learner, algorithm) is not None:
            return None
        return WholeIterations(collector, learner, algorithm, self.recorder)

    def together(self, runs: Sequence[tuple[Collector, Learner, Learns]]) -> Members | str:
        several = [Parts(one, own, algorithm) for one, own, algorithm in runs if isinstance(own, CudaLearner)]
        assert len(several) == len(runs), "a run of another engine"
        return not_together(several) or Members(several)

    def take_notices(self) -> list[str]:
        return self.recorder.take_notices()
