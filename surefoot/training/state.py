"""A checkpoint: the whole run as safetensors and JSON. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from surefoot.envs.spaces import space_from_json, space_to_json
from surefoot.errors import CheckpointError, UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.runs.checkpoints import read_verified, write_checkpoint
from surefoot.settings import options
from surefoot.training.tree import join, split

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer


def save_checkpoint(root: Path, trainer: Trainer, mid_rollout: bool = False) -> Path:
    """Write everything that acting (`policy`) and going on (`state`) need as `root/<step>`."""
    config = trainer.config.flat()
    names = {option.name for option in options(PolicyConfig)}
    description = {
        "observation_space": space_to_json(trainer.envs.observation_space),
        "action_space": space_to_json(trainer.envs.action_space),
        "policy": {name: value for name, value in config.items() if name in names},
        "critic": trainer.policy.has_critic,
    }
    plain, tensors = split(trainer.state_dict(mid_rollout=mid_rollout))
    # Parameters are views of one vector; safetensors wants each tensor on its own.
    weights = {name: tensor.detach().cpu().clone() for name, tensor in trainer.policy.state_dict().items()}
    files = {
        "policy.safetensors": safetensors.torch.save(weights),
        "policy.json": _json(description),
        "state.safetensors": safetensors.torch.save(tensors),
        "state.json": _json(plain),
    }
    return write_checkpoint(
        root, trainer.step, files, {"env": config["env"], "algo": config["algo"], "seed": trainer.seed}
    )


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def load_policy(folder: Path) -> ActorCritic:
    """The policy of a checkpoint, on the CPU."""
    _, files = read_verified(folder)
    facts = json.loads(files["policy.json"])
    try:
        policy = ActorCritic(
            space_from_json(facts["observation_space"]),
            space_from_json(facts["action_space"]),
            PolicyConfig(**facts["policy"]),
            critic=facts["critic"],
        )
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise CheckpointError(f"{folder} describes a policy that this version cannot build: {error}") from None
    _load_weights(policy, folder, files)
    return policy.eval()


@dataclass(frozen=True)
class Restored:
    """What a resume has to know of the checkpoint besides the trainer's own state."""

    lost_envs: list[int]  # whose open episode could not be restored
    log_sizes: dict[str, int]  # bytes of the logs when it was written


def restore(trainer: Trainer, folder: Path) -> Restored:
    """Bring a fresh trainer to where the checkpoint was."""
    manifest, files = read_verified(folder)
    if manifest["algo"] != trainer.config.run.algo:
        raise CheckpointError(f"{folder} was trained with {manifest['algo']}, not {trainer.config.run.algo}")
    facts = json.loads(files["policy.json"])
    for name in ("observation_space", "action_space"):
        now = space_to_json(getattr(trainer.envs, name))
        if facts[name] != now:
            raise CheckpointError(
                f"the env's {name} has changed since {folder} was written: it was {facts[name]}, now it is {now}"
            )
    _load_weights(trainer.policy, folder, files)
    state = join(json.loads(files["state.json"]), safetensors.torch.load(files["state.safetensors"]))
    return Restored(trainer.load_state_dict(state), state["log_sizes"])


def _load_weights(policy: ActorCritic, folder: Path, files: dict[str, bytes]) -> None:
    try:
        policy.load_state_dict(safetensors.torch.load(files["policy.safetensors"]))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the weights of {folder} do not fit their description: {error}") from None


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
