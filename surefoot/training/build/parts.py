"""The parts that a trainer is made of: envs, policy, device, learner, collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import torch

from surefoot.engine.collect import Collector
from surefoot.engine.collect_tensors import TensorCollector
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.native.describe import choose_engine, compile_parts
from surefoot.engine.limits import startable
from surefoot.engine.native.learner import NativeCollector, NativeLearner
from surefoot.engine.torch.openmp import can_share, require_threads
from surefoot.engine.torch.learner import Learner
from surefoot.engine.native.threads import most_threads
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch.threads import fastest_torch
from surefoot.envs.checks import blamed, reset_result, supported_spaces
from surefoot.envs.envpool_envs import PoolEnvs, is_envpool
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import NativeEnvs, serves_natively
from surefoot.envs.pettingzoo_copy import ParallelMaker, is_parallel
from surefoot.envs.pettingzoo_envs import ParallelEnvs
from surefoot.envs.rewards import RewardNormalizer
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs, holds_tensors
from surefoot.envs.vector_envs import VectorEnvs, declared_mode, vector_seed
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers.auto import choose_workers
from surefoot.errors import UsageError
from surefoot.kernels.classic import classic_library
from surefoot.policies.actor_critic import ActorCritic
from surefoot.training.build.checks import check_rollout
from surefoot.training.config.resolve import check_together
from surefoot.training.config.unused import check_ready

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

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


def build_envs(
    config: TrainConfig,
    seed: int,
    algorithm: Algorithm,
    ready: VectorEnv[Any, Any, Any] | None,
    factory: Callable[..., gym.Env[Any, Any]] | None,
    notice: Callable[[str], None],
) -> Envs:
    """`ready`: a vector env that somebody made. `factory`: makes one env; none: the config's. `notice`: of workers."""
    if ready is not None:
        check_together(config, ready.num_envs)
        check_ready(config, algorithm)
        return ready_envs(ready, seed)
    env, num_envs = config.env, config.algorithm.num_envs
    check_rollout(config.algorithm.rollout_length, num_envs)
    if factory is None and (own := envs_by_prefix(config, seed)) is not None:
        return own
    if not env.num_workers:
        if config.run.engine != "torch" and serves_natively(env, factory):
            return NativeEnvs(env, num_envs, seed, classic_library())
        return GymEnvs(lambda: make_env(env, factory), num_envs, seed)
    if env.restart_workers and algorithm.episodes_per_env is not None:
        raise UsageError(f"restart_workers cuts episodes short, but {config.run.algo} learns from whole ones; drop it")
    return WorkerEnvs(
        env,
        num_envs,
        seed,
        env.num_workers,
        timeout=env.env_timeout,
        restarts=env.restart_workers,
        factory=factory,
        notice=notice,
    )


def ready_envs(envs: VectorEnv[Any, Any, Any], seed: int) -> Envs:
    """A ready-made vector env; what its first reset returns tells whether it speaks in tensors."""
    declared_mode(envs)
    supported_spaces(envs, "single_")
    with blamed("reset", envs):
        obs, info = reset_result(envs.reset(seed=vector_seed(seed)), envs)
    return TensorEnvs(envs, (obs, info)) if holds_tensors(obs) else VectorEnvs(envs, seed, (obs, info))


def envs_by_prefix(config: TrainConfig, seed: int) -> Envs | None:
    """Envs of a kind that its id names (`envpool:…`, `pettingzoo:…`); None for Gymnasium's own."""
    if is_envpool(config.env.env):
        return PoolEnvs(config.env, config.algorithm.num_envs, seed)
    if is_parallel(config.env.env):
        make, copies = ParallelMaker(config.env), config.algorithm.num_envs
        envs = ParallelEnvs(make, copies, seed, config.env.max_episode_steps)
        try:
            check_together(config, envs.num_envs)
        except BaseException:
            envs.close()
            raise
        return envs
    return None


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


def settle_workers(config: TrainConfig, env: Any = None) -> tuple[TrainConfig, list[str]]:
    """(with a number of workers in the place of `auto`, what to say of it). `env`: one that was made in Python."""
    wanted, vector = config.env.workers, isinstance(env, gym.vector.VectorEnv)
    if vector and wanted not in (0, "auto"):
        raise UsageError("workers cannot step a ready-made vector env, which steps itself; drop workers")
    if wanted != "auto":
        return config, []
    num_envs = config.algorithm.num_envs
    check_rollout(config.algorithm.rollout_length, num_envs)
    if env is not None:
        number, why = 0, "a vector env steps itself" if vector else "another process cannot be given a function"
        timed = config.env.env_timeout != type(config.env).env_timeout
        for name, asked in (("restart_workers", config.env.restart_workers), ("env_timeout", timed)):
            if asked:
                raise UsageError(f"{name} needs workers, but {why}; drop it")
    else:
        number, why = choose_workers(config.env, num_envs)
    return replace(config, env=replace(config.env, workers=number)), [f"workers {number} ({why})"]
