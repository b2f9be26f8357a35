"""Checks before the first env step: spaces that do not fit the settings, and runs that do not fit into memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from gymnasium import spaces

from surefoot.analysis.rule import Facts
from surefoot.engine.registry import uses_kernels
from surefoot.envs.tensor_envs import device_of
from surefoot.envs.workers import WorkerEnvs
from surefoot.errors import UsageError
from surefoot.limits import most_threads
from surefoot.settings import coerce, options
from surefoot.training.build.available import available_bytes
from surefoot.training.build.footprint import COLUMNS, Footprint, Plan, footprint, stored_bytes
from surefoot.training.config.together import minibatches

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.types import Envs

CPU = torch.device("cpu")
MOST = 0.9  # fraction of the available memory that a run may plan to use
MOST_TASKS = 16  # the kernels split a gradient into this many tasks; more threads would not help
MANY_NUMBERS = 10_000  # observations larger than this are mentioned in the error
BOX_ONLY = ("std", "sde_resample", "log_std_init", "tanh_mean", "action_bounds")


def check_spaces(config: TrainConfig, envs: Envs) -> None:
    """Reject settings for continuous actions on a discrete env, or for images if there are none."""
    name, policy = config.env.env or "this env", config.policy
    if not _has_box(envs.action_space):
        for option in options(type(policy)):
            if option.name in BOX_ONLY and getattr(policy, option.name) != option.default:
                raise UsageError(
                    f"{option.name} is for continuous actions, but {name} has "
                    f"{envs.action_space}; drop it (the preset may be meant for another env)"
                )
    if config.algorithm.as_dict().get("mean_noise"):
        if not _has_box(envs.action_space):
            raise UsageError(f"mean_noise is for continuous actions, but {name} has {envs.action_space}; drop it")
        if policy.action_bounds != "clip":
            raise UsageError(
                f"mean_noise shifts the mean of a Gaussian that is clipped into its bounds, not of "
                f"action_bounds={policy.action_bounds}; use action_bounds=clip, or drop it"
            )
    images = any(leaf.kind == "image" for leaf in envs.layout.leaves)
    if not images and policy.chosen_encoder and not policy.own_encoder:
        raise UsageError(f"encoder={policy.encoder} is for images, but {name} shows {envs.observation_space}; drop it")


def _has_box(space: object) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(_has_box(part) for part in (space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box)


def facts_of(config: TrainConfig, envs: Envs) -> Facts:
    """Facts about the run that warnings depend on."""
    return Facts(
        env=config.env.env,
        num_envs=envs.num_envs,
        total_steps=config.run.total_steps,
        time_limit=config.env.max_episode_steps or envs.time_limit,
        discrete=not _has_box(envs.action_space),
        settings={
            **config.algorithm.as_dict(),
            **config.policy.as_dict(),
            **config.env.as_dict(),
            "init_from": config.run.init_from,
        },
    )


def rollout_length(config: TrainConfig, algorithm: Algorithm, envs: Envs) -> int:
    """The setting or, for algorithms that collect whole episodes, the longest possible episode."""
    if algorithm.episodes_per_env is None:
        return config.algorithm.rollout_length
    limit = config.env.max_episode_steps or envs.time_limit
    if limit is None:
        raise UsageError(
            f"{config.algo_name} learns from whole episodes, but the env has no time limit; set --max-episode-steps"
        )
    most = limit * algorithm.episodes_per_env * envs.num_envs
    if most > config.run.total_steps:
        raise UsageError(
            f"total_steps={config.run.total_steps} may not hold one rollout of {envs.num_envs} envs "
            f"× {algorithm.episodes_per_env} episodes of up to {limit} steps; "
            "raise --total-steps or lower --num-envs"
        )
    return limit


def check_rollout(length: int, num_envs: int) -> None:
    """Refuse rollouts that could not fit even with empty observations, before making that many envs."""
    needed, available = COLUMNS * length * num_envs, available_bytes(CPU)
    if available is not None and needed > available:
        raise UsageError(
            f"a rollout of {num_envs} envs × {length} steps needs at least {_gib(needed)}; {_gib(available)} are "
            "available. Lower --num-envs or --rollout-length"
        )


def plan_of(config: TrainConfig, algorithm: Algorithm, envs: Envs, length: int) -> Plan:
    """What the run's memory depends on; nothing is built yet. `length`: of a rollout, or of its longest episode."""
    settings, threads = config.algorithm.as_dict(), config.run.threads
    counted = minibatches(config, envs.num_envs, length)
    joint, of_value = counted.get("num_minibatches", 1), counted.get("value_minibatches", 1)
    passes = "num_epochs" if joint > 1 else "value_epochs" if of_value > 1 else None
    epochs = 0 if passes is None else coerce(passes, settings[passes], int)
    if passes == "num_epochs" and settings.get("value_epochs") is not None:
        epochs = max(epochs, coerce("value_epochs", settings["value_epochs"], int))
    return Plan(
        layout=envs.layout,
        action_space=envs.action_space,
        policy=config.policy,
        critic=algorithm.uses_critic,
        steps=length if algorithm.episodes_per_env is None else (length + 1) * algorithm.episodes_per_env,
        num_envs=envs.num_envs,
        minibatches=joint,
        shuffled=epochs,
        twice=not algorithm.train_actor,
        native=uses_kernels(config.engine) and device_of(envs) is None,
        threads=min(most_threads(), MOST_TASKS) if threads == "auto" else threads,
        measured=threads == "auto",
        workers=isinstance(envs, WorkerEnvs),
    )


def check_memory(plan: Plan, device: torch.device = CPU, *, on_host: bool = True) -> Footprint:
    """Refuse a run that cannot fit into memory, before a network or a rollout is allocated.

    `device`: where learning happens. `on_host`: whether rollouts are collected in host memory.
    """
    elsewhere = device.type != "cpu"
    needed = footprint(replace(plan, native=False) if elsewhere else plan)
    if elsewhere:  # a recorded gradient step has a copy of the batch
        needed = replace(needed, learning=needed.learning + stored_bytes(plan))
    _require(needed, plan, device)
    if elsewhere and on_host:
        _require(Footprint(stored_bytes(plan), 0, 0), plan, CPU)
    return needed


def check_memory_for(several: int, each: Footprint, device: torch.device) -> None:
    """Refuse more runs at once than fit into a device's memory. `each`: what one of them needs there."""
    available = available_bytes(device)
    if available is not None and several * each.total > MOST * available:
        most = int(MOST * available / max(each.total, 1))
        raise UsageError(
            f"{several} runs at once would need about {_gib(several * each.total)} of memory; {_gib(available)} are "
            f"available on {device}. Train at most {most} at once, or lower --num-envs or --rollout-length"
        )


def _require(needed: Footprint, plan: Plan, device: torch.device) -> None:
    available = available_bytes(device)
    if available is None or needed.total <= MOST * available:
        return
    where = "" if device.type == "cpu" else f" on {device}"
    parts = {
        f"rollouts of {plan.num_envs} envs × {plan.steps} steps": needed.rollout,
        "networks": needed.networks,
        "learning": needed.learning,
    }
    listed = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size)
    raise UsageError(
        f"this run would need about {_gib(needed.total)} of memory ({listed}); {_gib(available)} are available{where}. "
        + _advice(needed, plan)
    )


def _advice(needed: Footprint, plan: Plan) -> str:
    flags = "--num-envs or --rollout-length"
    advice = f"Lower {flags}"
    if needed.networks >= max(needed.rollout, needed.learning):
        advice = "Lower --hidden-sizes"
    elif needed.learning > needed.rollout and plan.minibatches > 1:
        advice = f"Raise --num-minibatches, or lower {flags}"
    numbers = plan.layout.numbers
    return advice + (f", or shrink the observation of {numbers:,} numbers" if numbers >= MANY_NUMBERS else "")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size < 2**50 else f"{size / 2**50:,.0f} PiB"
