"""The parts that a trainer is made of: policy, device, and the options of its learner and collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from surefoot.engine.contract import CollectorOptions, LearnerOptions
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.seeds import derive_seed
from surefoot.errors import UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.settings import coerce
from surefoot.training.config.together import minibatches

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.engine.group import Group
    from surefoot.engine.names import Precision
    from surefoot.engine.timing import PhaseTimer
    from surefoot.policies.config import PolicyConfig
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.types import GymSpace

LARGE_POLICY = 1_000_000  # parameters from which a GPU is worth the transfers


def initial_policy(
    observation_space: GymSpace,
    action_space: GymSpace,
    config: PolicyConfig,
    seed: int,
    *,
    critic: bool,
    masked: bool,
    encoder: EncoderClass | None = None,
) -> ActorCritic:
    """The initial policy of a run with this seed."""
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
    """(the device, the reason) for a policy of `size` parameters. `home`: the device of tensor envs' observations."""
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


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse to round products where nothing would be faster."""
    if precision != "float32" and device.type != "cuda":
        raise UsageError(
            f"precision={precision} is for GPUs, and this run is on the {device}; drop it, or use --device cuda"
        )


def learner_options(
    config: TrainConfig, seed: int, device: torch.device, num_envs: int, length: int, group: Group
) -> LearnerOptions:
    """`length`: steps of a rollout. `num_envs`: of this process."""
    parts = next(iter(minibatches(config, num_envs * group.size, length).values()), 1)
    samples = max(1, num_envs * length // parts)
    # On one machine the processes use its cores; results must not depend on what each of them measures.
    threads = 1 if group.size > 1 and config.run.threads == "auto" else config.run.threads
    return LearnerOptions(_generator(seed, "shuffle", device), threads, samples, group, config.run.precision)


def collector_options(
    config: TrainConfig,
    seed: int,
    device: torch.device,
    algorithm: Algorithm,
    num_envs: int,
    length: int,
    timer: PhaseTimer,
    group: Group,
) -> CollectorOptions:
    """`length`: steps of a rollout, or of the longest of its whole episodes."""
    gamma = None
    if config.env.normalize_rewards:
        gamma = coerce("gamma", config.algorithm.as_dict()["gamma"], float)
    return CollectorOptions(
        length,
        _generator(seed, "actions", device),
        episodes_per_env=algorithm.episodes_per_env,
        reset_each_rollout=config.algorithm.reset_each_rollout,
        reward_scale=config.env.reward_scale,
        sign_rewards=config.env.sign_rewards,
        reward_gamma=gamma,
        log_info=config.run.log_info,
        group=group,
        timer=timer,
    )


def _generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on the device that uses the numbers, so that none have to be copied."""
    return torch.Generator(device).manual_seed(derive_seed(seed, purpose))
