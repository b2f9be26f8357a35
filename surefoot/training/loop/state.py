"""A checkpoint: the complete run as safetensors and JSON. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import safetensors.torch

from surefoot.engine.collecting.shared_state import part_of
from surefoot.engine.torch_threads import torch_threads
from surefoot.errors import CheckpointError, UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.runs.checkpoints import MANIFEST, read_verified
from surefoot.schema import Misfit
from surefoot.spaces.as_json import space_to_json
from surefoot.training.build.own_encoders import NO_CODE, EncoderCode
from surefoot.training.evaluation.described import Described
from surefoot.training.evaluation.facts import WRONG_CONTENT
from surefoot.training.loop.global_generators import restore_globals
from surefoot.training.loop.state_tree import join, split
from surefoot.types import Restorable

if TYPE_CHECKING:
    from surefoot.training.config.resolve import Outline
    from surefoot.training.loop.trainer_state import TrainerState
    from surefoot.training.trainer import Trainer


Content: TypeAlias = tuple[Mapping[str, Any], dict[str, bytes]]  # a checkpoint's manifest and its files
ONLY_AT_FIRST = {"init", "log_std_init"}  # policy settings that loaded weights make irrelevant


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint as bytes. It holds no reference to the run, so it can be written while the run continues."""

    step: int
    files: dict[str, bytes]
    facts: dict[str, object]


def take_snapshot(trainer: Trainer, *, mid_rollout: bool = False) -> Snapshot:
    """Everything needed to act (`policy`) and to resume (`state`)."""
    config = trainer.config.flat()
    names = {field.name for field in fields(PolicyConfig)}
    description = {
        "observation_space": space_to_json(trainer.envs.observation_space),
        "action_space": space_to_json(trainer.envs.action_space),
        "policy": {name: value for name, value in config.items() if name in names},
        "critic": trainer.policy.has_critic,
        "masked": bool(trainer.policy.layout.mask_size),
    }
    plain, tensors = split(trainer.state_dict(mid_rollout=mid_rollout))
    # Parameters are views of one vector; safetensors needs separate tensors.
    weights = {name: tensor.detach().cpu().clone() for name, tensor in trainer.policy.state_dict().items()}
    files = {
        "policy.safetensors": safetensors.torch.save(weights),
        "policy.json": _json(description),
        "state.safetensors": safetensors.torch.save(tensors),
        "state.json": _json(plain),
    }
    facts = {"env": config["env"], "algo": config["algo"], "seed": trainer.seed, "mid_rollout": mid_rollout}
    return Snapshot(trainer.step, files, facts)


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def load_policy(folder: Path, code: EncoderCode = NO_CODE) -> ActorCritic:
    """The policy of a checkpoint, on the CPU."""
    with torch_threads(1):  # PyTorch's own number may be more than this process can start
        described = Described.read(folder, read_verified(folder)[1])
        policy = described.build(code)
        described.fill(policy)
    return policy.eval()


def untrained_policy(folder: Path, config: Outline, code: EncoderCode = NO_CODE) -> ActorCritic:
    """The initial policy of the run that this checkpoint belongs to."""
    if config.run.init_from is not None:
        return load_policy(Path(config.run.init_from), code)
    with torch_threads(1):
        return Described.read(folder, read_verified(folder)[1]).build(code, config.run.seed or 0).eval()


@dataclass(frozen=True)
class Restored:
    """What a resume needs to know about the checkpoint besides the trainer's own state."""

    lost_envs: list[int]  # envs whose open episode could not be restored
    log_sizes: dict[str, int]  # bytes of the logs when the checkpoint was written
    unwritten: dict[str, list[str]] = field(default_factory=dict)  # rows that a full disk had refused so far
    mid_rollout: bool = False  # it was saved after an error, when the state of the envs was no longer known


def restore(trainer: Trainer, folder: Path, content: Content | None = None) -> Restored:
    """Bring a new trainer to the state of the checkpoint. Writes nothing. `content`: what the folder contains."""
    group = trainer.group
    manifest, files = content or read_verified(folder)
    for name, now in (("algo", trainer.config.run.algo), ("env", trainer.config.env.env)):
        if manifest.get(name) != now:
            raise CheckpointError(f"{folder} was trained with {name} {manifest.get(name)}, not {now}")
    described = Described.read(folder, files)
    _check_spaces(trainer, described)
    described.fill(trainer.policy)
    try:
        found = join(json.loads(files["state.json"]), safetensors.torch.load(files["state.safetensors"]))
        state = cast("TrainerState", found)
        if group.size > 1:
            state["collector"] = part_of(state["collector"], group.index, group.size)
        trainer.state_shape().check(found)
        if state["step"] != manifest["step"]:
            raise Misfit(f"step is {state['step']}, not {manifest['step']} as in {MANIFEST}")
        first = group.index * trainer.envs.num_envs
        own = [first + index for index in trainer.load_state_dict(state)]
        lost = [index for indices in group.gather(own) for index in indices]
        if trainer.own_process and state["globals"] is not None:
            restore_globals(state["globals"])
        mid_rollout = state["collector"]["envs"] is None and isinstance(trainer.envs, Restorable)
        restored = Restored(lost, state["logs"]["sizes"], state["logs"]["unwritten"], mid_rollout)
    except Misfit as misfit:
        raise CheckpointError(f"{folder / 'state.json'} is malformed: {misfit}") from None
    except WRONG_CONTENT as error:
        raise CheckpointError(f"{folder} holds a state that this version cannot read: {error!r}") from None
    return restored


def start_from(trainer: Trainer, folder: Path) -> list[str]:
    """Give a new trainer the policy and normaliser of another run's checkpoint. Returns messages about it."""
    described = Described.read(folder, read_verified(folder)[1])
    _check_spaces(trainer, described)
    critic = described.facts["critic"]
    without_critic = {"critic_hidden_sizes"} if not (critic and trainer.policy.has_critic) else set()
    built, wanted = described.config(), trainer.config.policy
    # A user's encoder may have moved to another file; loading the weights will show whether they fit.
    moved = {"encoder"} if built.own_encoder and wanted.own_encoder else set()
    images = any(leaf.kind == "image" for leaf in trainer.policy.layout.leaves)
    if not images and not built.own_encoder and not wanted.own_encoder:
        moved = {"encoder"}  # no encoder is used
    theirs, mine = asdict(built), asdict(wanted)
    for name in mine.keys() - ONLY_AT_FIRST - without_critic - moved:
        if mine[name] != theirs[name]:
            raise UsageError(f"{name}={mine[name]}, but init_from={folder} was made with {theirs[name]}; drop {name}")
    # If one side has no critic, load only the actor's part.
    described.fill(trainer.policy, strict=not without_critic)
    notes = [f"starting from the policy of {folder}"]
    if trainer.policy.has_critic and not critic:
        notes.append("that run had no critic; this one starts with a fresh critic")
    return notes


def _check_spaces(trainer: Trainer, described: Described) -> None:
    envs, facts = trainer.envs, described.facts
    for name, space, then in (
        ("observation_space", envs.observation_space, facts["observation_space"]),
        ("action_space", envs.action_space, facts["action_space"]),
    ):
        if then != (now := space_to_json(space)):
            raise CheckpointError(
                f"the env's {name} is not the one that {described.folder} was made for: it was {then}, now it is {now}"
            )
