"""The parts that a trainer is made of: envs, policy, device, learner, collector."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from surefoot.engine.collect import Collector
from surefoot.engine.collect_tensors import TensorCollector
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.limits import startable
from surefoot.engine.native.describe import choose_engine, compile_parts
from surefoot.engine.native.learner import NativeCollector, NativeLearner
from surefoot.engine.native.threads import most_threads
from surefoot.engine.torch.learner import Learner
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch.openmp import can_share, require_threads
from surefoot.engine.torch.threads import fastest_torch
from surefoot.envs.rewards import RewardNormalizer
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.errors import UsageError
from surefoot.policies.actor_critic import ActorCritic

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.engine.timing import PhaseTimer
    from surefoot.policies.config import PolicyConfig
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.types import Envs

LARGE_POLICY = 1_000_000  # parameters from which a GPU beats the cost of reaching it


def initial_policy(
    observation_space: Any,
    action_space: Any,
    config: PolicyConfig,
    seed: int,
    *,
    critic: bool,
    masked: bool,
    encoder: EncoderClass | None = None,
) -> ActorCritic:
    """The policy that a run of this seed begins with."""
    generator = _generator(seed, "init")
    with own_modes(gradients=True):
        return ActorCritic(
            observation_space,
            action_space,
            config,
            critic=critic,
            masked=masked,
            encoder=encoder,
            generator=generator,
        )


def choose_device(wanted: str, size: int, home: torch.device | None = None) -> tuple[torch.device, str]:
    """(the device, why) for a policy of so many parameters. `home`: where the observations of tensor envs are."""
    if home is not None and (wanted == "auto" or wanted == home.type):
        return home, "where the envs' tensors are"
    if wanted == "cpu":
        return torch.device("cpu"), "as asked"
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("device=cuda, but PyTorch sees no CUDA device here; use --device cpu")
        return torch.device("cuda"), "as asked"
    if not torch.cuda.is_available():
        return torch.device("cpu"), "no CUDA device here"
    if size < LARGE_POLICY:
        return torch.device("cpu"), f"{size:,} parameters are too few to gain from the GPU"
    return torch.device("cuda"), f"{size:,} parameters"


class Threads(NamedTuple):
    """Of a learner."""

    number: int
    why: str = ""
    asked: int = 1

    def __str__(self) -> str:
        why = self.why if self.number > 1 else ""
        if self.number < self.asked:
            why = f"{self.asked} were asked for; the system refused more"
        return f"{self.number} thread{'s' if self.number > 1 else ''}{f' ({why})' if why else ''}"


def build_learner(
    config: TrainConfig, seed: int, algorithm: Algorithm, policy: ActorCritic, *, samples: int, tensors: bool
) -> tuple[Learner, str, Threads]:
    """(the learner, why this engine's, its threads). `samples` of a rollout; `tensors`: the envs are of tensors."""
    native, reason = choose_engine(config.run.engine, policy, tensors=tensors)
    build: Any = Learner
    wanted, samples = config.run.threads, _minibatch(config.algorithm, samples)
    if native:
        build = partial(NativeLearner, threads=None if wanted == "auto" else wanted, samples=samples)
    learner: Learner = build(
        policy,
        config.algorithm,
        _generator(seed, "shuffle"),
        train_actor=algorithm.train_actor,
        critic_learning_rate=getattr(config.algorithm, "critic_learning_rate", None),
        adaptive_kl=getattr(config.algorithm, "adaptive_kl", None),
    )
    if isinstance(learner, NativeLearner):
        return learner, reason, Threads(learner.net.threads, asked=learner.net.asked)
    parts = config.run.engine == "auto" and not tensors
    if parts:
        compiled = compile_parts(policy, learner.flat, 1)
        reason += f"; {compiled}" if compiled else ""
    threads = _torch_threads(policy, wanted, samples, on_cpu=learner.flat.vector.device.type == "cpu")
    if parts and threads.number > 1:
        compile_parts(policy, learner.flat, threads.number)
    return learner, reason, threads


def _torch_threads(policy: ActorCritic, wanted: int | str, samples: int, *, on_cpu: bool) -> Threads:
    """As asked for, or as are fastest. Fewer where GNU's OpenMP could not start them: it would end the process."""
    if isinstance(wanted, int):
        require_threads(wanted)
        return Threads(startable(wanted), asked=wanted)
    most = most_threads() if on_cpu and can_share() else 1
    possible = startable(most)
    return Threads(*fastest_torch(policy, samples, possible), asked=most if possible < most else 1)


def _minibatch(config: Any, samples: int) -> int:
    """Samples of a gradient step, about."""
    parts: int = getattr(config, "num_minibatches", 0) or getattr(config, "value_minibatches", 1)
    return max(1, samples // parts)


def build_collector(
    config: TrainConfig,
    seed: int,
    algorithm: Algorithm,
    envs: Envs,
    learner: Learner,
    length: int,
    timer: PhaseTimer,
) -> Collector | TensorCollector:
    """What plays the learner's policy in the envs, `length` steps (or episodes of at most so many) at a time."""
    build: Any = TensorCollector if isinstance(envs, TensorEnvs) else Collector
    if isinstance(learner, NativeLearner):
        build = partial(NativeCollector, learner=learner)
    normalizer = None
    if config.env.normalize_rewards:
        normalizer = RewardNormalizer(envs.num_envs, config.algorithm.gamma)
    collector: Collector | TensorCollector = build(
        envs,
        learner.policy,
        length,
        _generator(seed, "actions"),
        episodes_per_env=algorithm.episodes_per_env,
        reset_each_rollout=config.algorithm.reset_each_rollout,
        reward_scale=config.env.reward_scale,
        sign_rewards=config.env.sign_rewards,
        reward_normalizer=normalizer,
        tracker=EpisodeTracker(envs.num_envs, config.run.log_info),
        timer=timer,
    )
    return collector


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(derive_seed(seed, purpose))
