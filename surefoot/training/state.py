"""Checkpoints: a directory of safetensors and JSON, written beside and renamed. Nothing is ever unpickled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from surefoot.algorithms import get_algorithm
from surefoot.envs.spaces import space_from_json, space_to_json
from surefoot.errors import CheckpointError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.settings import options

SCHEMA = 1


def save_checkpoint(
    folder: Path, policy: ActorCritic, spaces: tuple[Any, Any], config: dict[str, Any], **facts: Any
) -> Path:
    """Write the policy and all that is needed to act with it as `folder`, whole or not at all."""
    beside = folder.with_name(f".tmp-{folder.name}-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    # Parameters are views of one vector; safetensors wants each tensor on its own.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in policy.state_dict().items()}
    write_atomic(beside / "policy.safetensors", safetensors.torch.save(tensors))
    observation, action = (space_to_json(space) for space in spaces)
    names = {option.name for option in options(PolicyConfig)}
    write_json(
        beside / "checkpoint.json",
        {
            "schema": SCHEMA,
            "observation_space": observation,
            "action_space": action,
            "policy": {k: v for k, v in config.items() if k in names},
            "algo": config["algo"],
            **facts,
        },
    )
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(beside, folder)
    return folder


def load_policy(folder: Path) -> ActorCritic:
    """The policy of a checkpoint, on the CPU."""
    try:
        facts = read_json(folder / "checkpoint.json")
        tensors = safetensors.torch.load_file(folder / "policy.safetensors")
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from None
    if facts.get("schema") != SCHEMA:
        raise CheckpointError(f"the checkpoint {folder} has schema {facts.get('schema')}; this version reads {SCHEMA}")
    policy = ActorCritic(
        space_from_json(facts["observation_space"]),
        space_from_json(facts["action_space"]),
        PolicyConfig(**facts["policy"]),
        critic=get_algorithm(facts["algo"]).uses_critic,
    )
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint {folder} does not fit its own description: {error}") from None
    return policy.eval()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
