"""The PyTorch engine: supports every policy, algorithm, env and device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.config import AdaptiveRateConfig, CriticRateConfig, EpochConfig
from surefoot.engine.contract import Engine, Threads
from surefoot.engine.openmp import can_share, require_threads
from surefoot.engine.precision import SLACK
from surefoot.engine.torch.critic_apart import require_apart
from surefoot.engine.torch.learner import Learner
from surefoot.engine.torch.threads import fastest_torch
from surefoot.limits import most_threads, startable

if TYPE_CHECKING:
    from surefoot.engine.contract import Actor, CollectorOptions, LearnerOptions, Learns
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Envs


class TorchEngine(Engine):
    """Readable PyTorch: the reference for every other engine."""

    name = acts_with = "torch"

    def serves(self, policy: ActorCritic, algorithm: Learns, envs: Envs) -> str | None:
        return None

    def learner(self, policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner:
        learner = make_learner(Learner, policy, algorithm, options)
        learner.threads = torch_threads_for(policy, options.threads, options.samples)
        return learner

    def collector(self, envs: Envs, actor: Actor, options: CollectorOptions) -> Collector:
        return Collector(envs, actor, options, self.operations, step_all)


def make_learner(kind: type[Learner], policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner:
    """A learner of this class with the algorithm's learning rates."""
    config = algorithm.config
    apart = isinstance(config, EpochConfig) and config.value_epochs is not None
    if apart:
        require_apart(policy)
    learner = kind(
        policy,
        config,
        options.generator,
        group=options.group,
        train_actor=algorithm.train_actor,
        critic_learning_rate=config.critic_learning_rate if isinstance(config, CriticRateConfig) else None,
        adaptive_kl=config.adaptive_kl if isinstance(config, AdaptiveRateConfig) else None,
        critic_apart=apart,
    )
    learner.ratio_tolerance *= SLACK[options.precision]
    return learner


def torch_threads_for(policy: ActorCritic, wanted: int | Literal["auto"], samples: int) -> Threads:
    """The requested or the fastest number. Fewer if GNU's OpenMP could not start them: it would end the process."""
    if wanted != "auto":
        require_threads(wanted)
        return Threads(startable(wanted), asked=wanted)
    on_cpu = policy.device.type == "cpu"
    most = most_threads() if on_cpu and can_share() else 1
    possible = startable(most)
    return Threads(*fastest_torch(policy, samples, possible), asked=most if possible < most else 1)
