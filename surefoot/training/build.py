"""The parts that a trainer is made of, each checked before the first env step."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from gymnasium import spaces

from surefoot.envs.envpool_envs import PoolEnvs, is_envpool
from surefoot.envs.parallel_copy import ParallelMaker, is_parallel
from surefoot.envs.parallel_envs import ParallelEnvs
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs, holds_tensors
from surefoot.envs.vector_envs import VectorEnvs, declared_mode, vector_seed
from surefoot.envs.workers.auto import choose_workers
from surefoot.errors import UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.settings import options
from surefoot.training.config import check_together

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from surefoot.algorithms import Algorithm
    from surefoot.policies.config import PolicyConfig
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.training.config import TrainConfig
    from surefoot.types import Envs

BOX_ONLY = ("std", "sde_resample", "log_std_init", "tanh_mean", "action_bounds")
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
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "init"))
        return ActorCritic(observation_space, action_space, config, critic=critic, masked=masked, encoder=encoder)


def check_spaces(config: TrainConfig, envs: Envs) -> None:
    """A setting for continuous actions on a discrete env, or for images where there are none, would be inert."""
    name, policy = config.env.env or "this env", config.policy
    if not _has_box(envs.action_space):
        for option in options(type(policy)):
            if option.name in BOX_ONLY and getattr(policy, option.name) != option.default:
                raise UsageError(
                    f"{option.name} is for continuous actions, but {name} has "
                    f"{envs.action_space}; drop it (the preset may be meant for another env)"
                )
    images = any(leaf.kind == "image" for leaf in envs.layout.leaves)
    if not images and policy.encoder != "auto" and not policy.own_encoder:
        raise UsageError(f"encoder={policy.encoder} is for images, but {name} shows {envs.observation_space}; drop it")


def _has_box(space: Any) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(_has_box(part) for part in (space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box)


def ready_envs(envs: VectorEnv[Any, Any, Any], seed: int) -> Envs:
    """A ready-made vector env; what its first reset returns tells whether it speaks in tensors."""
    declared_mode(envs)
    begun = envs.reset(seed=vector_seed(seed))
    return TensorEnvs(envs, begun) if holds_tensors(begun[0]) else VectorEnvs(envs, seed, begun)


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


def rollout_length(config: TrainConfig, algorithm: Algorithm, envs: Envs) -> int:
    """As set, or for whole episodes the longest that one may be."""
    if algorithm.episodes_per_env is None:
        return int(config.algorithm.rollout_length)
    limit = config.env.max_episode_steps or envs.time_limit
    if limit is None:
        raise UsageError(
            f"{config.run.algo} learns from whole episodes, but the env has no time limit; set --max-episode-steps"
        )
    most = limit * algorithm.episodes_per_env * envs.num_envs
    if most > config.run.total_steps:
        raise UsageError(
            f"total_steps={config.run.total_steps} may not hold one rollout of {envs.num_envs} envs "
            f"× {algorithm.episodes_per_env} episodes of up to {limit} steps; "
            "raise --total-steps or lower --num-envs"
        )
    return limit


def choose_device(wanted: str, policy: ActorCritic, home: torch.device | None = None) -> tuple[torch.device, str]:
    """(the device, why). `home`: where the observations of tensor envs are."""
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
    size = sum(p.numel() for p in policy.parameters())
    if size < LARGE_POLICY:
        return torch.device("cpu"), f"{size:,} parameters are too few to gain from the GPU"
    return torch.device("cuda"), f"{size:,} parameters"


def settle_workers(config: TrainConfig, env: Any = None) -> tuple[TrainConfig, list[str]]:
    """(with a number of workers in the place of `auto`, what to say of it). `env`: one that was made in Python."""
    wanted, vector = config.env.workers, isinstance(env, gym.vector.VectorEnv)
    if vector and wanted not in (0, "auto"):
        raise UsageError("workers cannot step a ready-made vector env, which steps itself; drop workers")
    if wanted != "auto":
        return config, []
    num_envs = config.algorithm.num_envs
    check_memory(config.algorithm.rollout_length, num_envs)
    if env is not None:
        number, why = 0, "a vector env steps itself" if vector else "another process cannot be given a function"
        if config.env.restart_workers:
            raise UsageError(f"restart_workers needs workers, but {why}; drop it")
    else:
        number, why = choose_workers(config.env, num_envs)
    return replace(config, env=replace(config.env, workers=number)), [f"workers {number} ({why})"]


def check_memory(length: int, num_envs: int, numbers: int = 1) -> None:
    """Refuse rollouts that cannot fit, before they (or so many envs) are made. `numbers`: in an observation, and A."""
    needed = 3 * length * num_envs * (4 * numbers + 48)  # stored, normalised, in minibatches
    _require(needed, f"a rollout of {num_envs} envs × {length} steps", "Lower --num-envs or --rollout-length")


def check_policy(config: PolicyConfig) -> None:
    """Refuse networks that cannot fit."""
    widths = [sizes for sizes in (config.hidden_sizes, config.critic_hidden_sizes or config.hidden_sizes) if sizes]
    parameters = sum(a * b for sizes in widths for a, b in pairwise((1, *sizes)))
    needed = 4 * 5 * parameters  # gradient, two moments of Adam, a copy to fall back on
    _require(needed, f"networks of hidden_sizes={config.hidden_sizes}", "Lower --hidden-sizes")


def _require(needed: int, what: str, advice: str) -> None:
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if available is not None and needed > 0.8 * available:
        raise UsageError(
            f"{what} need{'' if what.startswith('networks') else 's'} about {needed / 2**30:.1f} GiB; "
            f"this machine has {available / 2**30:.1f}. {advice}"
        )
