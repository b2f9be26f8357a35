"""What is refused before the first env step: settings that would be inert, and what does not fit into memory."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.settings import options
from surefoot.training.advice import Facts

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.policies.config import PolicyConfig
    from surefoot.training.config import TrainConfig
    from surefoot.types import Envs

CPU = torch.device("cpu")
BOX_ONLY = ("std", "sde_resample", "log_std_init", "tanh_mean", "action_bounds")


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
    if not images and policy.chosen_encoder and not policy.own_encoder:
        raise UsageError(f"encoder={policy.encoder} is for images, but {name} shows {envs.observation_space}; drop it")


def _has_box(space: Any) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(_has_box(part) for part in (space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box)


def facts_of(config: TrainConfig, envs: Envs) -> Facts:
    """What warnings about this run may depend on."""
    return Facts(
        env=config.env.env,
        num_envs=envs.num_envs,
        total_steps=config.run.total_steps,
        time_limit=config.env.max_episode_steps or envs.time_limit,
        discrete=not _has_box(envs.action_space),
        settings=config.algorithm.as_dict(),
    )


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


def check_memory(
    length: int, num_envs: int, size: int = 4, device: torch.device = CPU, *, on_host: bool = True
) -> None:
    """Refuse rollouts that cannot fit, before they (or so many envs) are made.

    `size`: bytes of an observation and what belongs to it. `device`: where is learned; `on_host`: collected here.
    """
    what, advice = f"a rollout of {num_envs} envs × {length} steps", "Lower --num-envs or --rollout-length"
    once = length * num_envs * (size + 48)
    _require(3 * once, what, advice, device)  # stored, normalised, in minibatches
    if on_host and device.type != "cpu":
        _require(once, what, advice)


def bytes_per_step(policy: ActorCritic, length: int) -> int:
    """What a rollout of this length stores for every step of an env: observation, distribution, exploration."""
    numbers = policy.actions.num_params
    if policy.sde:
        numbers += int(np.prod(policy.matrix_shape)) // (policy.config.sde_resample or length)
    return 4 * numbers + int(np.prod(policy.layout.shape)) * np.dtype(policy.layout.dtype).itemsize


def check_policy(config: PolicyConfig) -> None:
    """Refuse networks that cannot fit."""
    widths = [sizes for sizes in (config.hidden_sizes, config.critic_hidden_sizes or config.hidden_sizes) if sizes]
    parameters = sum(a * b for sizes in widths for a, b in pairwise((1, *sizes)))
    needed = 4 * 5 * parameters  # gradient, two moments of Adam, a copy to fall back on
    _require(needed, f"networks of hidden_sizes={config.hidden_sizes}", "Lower --hidden-sizes")


def _require(needed: int, what: str, advice: str, device: torch.device = CPU) -> None:
    available = _available(device)
    if available is not None and needed > 0.8 * available:
        where = "this machine has" if device.type == "cpu" else f"free on {device} are"
        raise UsageError(
            f"{what} need{'' if what.startswith('networks') else 's'} about {needed / 2**30:.1f} GiB; "
            f"{where} {available / 2**30:.1f}. {advice}"
        )


def _available(device: torch.device) -> int | None:
    """Bytes: all that the machine has, or those of a GPU that nobody holds yet. None: not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu" or not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(getattr(os, "sysconf_names", ())):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
