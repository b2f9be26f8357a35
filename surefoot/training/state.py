"""A checkpoint: the whole run as safetensors and JSON. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch

from surefoot.engine.torch_threads import torch_threads
from surefoot.errors import CheckpointError, UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.runs.checkpoints import point_best, read_verified, write_checkpoint
from surefoot.settings import options
from surefoot.spaces.as_json import space_from_json, space_to_json
from surefoot.training.build import initial_policy
from surefoot.training.encoders import NO_CODE, EncoderCode
from surefoot.training.generators import restore_globals
from surefoot.training.tree import join, split

if TYPE_CHECKING:
    from surefoot.training.config import TrainConfig
    from surefoot.training.trainer import Trainer


# What a file with the right hash but the wrong content (another version's, or a stranger's) can make of us.
WRONG_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RuntimeError,
    AssertionError,
    OverflowError,
)
ONLY_AT_FIRST = {"init", "log_std_init"}  # settings of a policy that loaded weights overrule


def save_checkpoint(root: Path, trainer: Trainer, *, best: bool = False, mid_rollout: bool = False) -> Path:
    """Write everything that acting (`policy`) and going on (`state`) need as `root/<step>`."""
    config = trainer.config.flat()
    names = {option.name for option in options(PolicyConfig)}
    description = {
        "observation_space": space_to_json(trainer.envs.observation_space),
        "action_space": space_to_json(trainer.envs.action_space),
        "policy": {name: value for name, value in config.items() if name in names},
        "critic": trainer.policy.has_critic,
        "masked": bool(trainer.policy.layout.mask_size),
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
    facts = {"env": config["env"], "algo": config["algo"], "seed": trainer.seed, "mid_rollout": mid_rollout}
    return write_checkpoint(root, trainer.step, files, facts, best=best)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def load_policy(folder: Path, code: EncoderCode = NO_CODE) -> ActorCritic:
    """The policy of a checkpoint, on the CPU."""
    _, files = read_verified(folder)
    policy = _build_policy(folder, files, code)
    _load_weights(policy, folder, files)
    return policy.eval()


def untrained_policy(folder: Path, config: TrainConfig, code: EncoderCode = NO_CODE) -> ActorCritic:
    """The policy that the run of this checkpoint began with."""
    if config.run.init_from is not None:
        return load_policy(Path(config.run.init_from), code)
    seed = config.run.seed or 0
    with torch_threads(1):
        return _build_policy(folder, read_verified(folder)[1], code, seed).eval()


def _build_policy(folder: Path, files: dict[str, bytes], code: EncoderCode, seed: int = 0) -> ActorCritic:
    """As `policy.json` describes it, with the first weights of a run of this seed."""
    facts = _facts(folder, files)
    try:
        observation_space, action_space = (
            space_from_json(facts[f"{name}_space"]) for name in ("observation", "action")
        )
        config = PolicyConfig(**facts["policy"])
    except (*WRONG_CONTENT, UsageError) as error:
        raise CheckpointError(f"{folder} describes a policy that this version cannot build: {error}") from None
    encoder = code.of(config, folder)
    try:
        return initial_policy(
            observation_space,
            action_space,
            config,
            seed,
            critic=facts["critic"],
            masked=facts["masked"],
            encoder=encoder,
        )
    except (*WRONG_CONTENT, UsageError) as error:
        raise CheckpointError(f"{folder} describes a policy that this version cannot build: {error}") from None


@dataclass(frozen=True)
class Restored:
    """What a resume has to know of the checkpoint besides the trainer's own state."""

    lost_envs: list[int]  # whose open episode could not be restored
    log_sizes: dict[str, int]  # bytes of the logs when it was written
    unwritten: dict[str, list[str]] = field(default_factory=dict)  # rows that the disk had refused until then


def restore(trainer: Trainer, folder: Path) -> Restored:
    """Bring a fresh trainer to where the checkpoint was."""
    manifest, files = read_verified(folder)
    for name, now in (("algo", trainer.config.run.algo), ("env", trainer.config.env.env)):
        if manifest.get(name) != now:
            raise CheckpointError(f"{folder} was trained with {name} {manifest.get(name)}, not {now}")
    _check_spaces(trainer, folder, _facts(folder, files))
    _load_weights(trainer.policy, folder, files)
    try:
        state = join(json.loads(files["state.json"]), safetensors.torch.load(files["state.safetensors"]))
        lost = trainer.load_state_dict(state)
        best = trainer.selection.best
        if trainer.own_process and state["globals"] is not None:
            restore_globals(state["globals"])
        restored = Restored(lost, state["logs"]["sizes"], state["logs"]["unwritten"])
    except (*WRONG_CONTENT, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder} holds a state that this version cannot read: {error!r}") from None
    point_best(folder.parent, best[0] if best else None)
    return restored


def start_from(trainer: Trainer, folder: Path) -> list[str]:
    """Give a fresh trainer the policy and normaliser of another run's checkpoint; what is worth saying of it."""
    _, files = read_verified(folder)
    facts = _facts(folder, files)
    _check_spaces(trainer, folder, facts)
    without_critic = {"critic_hidden_sizes"} if not (facts["critic"] and trainer.policy.has_critic) else set()
    try:
        built, wanted = PolicyConfig(**facts["policy"]), trainer.config.policy
    except (*WRONG_CONTENT, UsageError) as error:
        raise CheckpointError(f"{folder} describes a policy that this version cannot build: {error}") from None
    # A user's encoder may have moved to another file since; whether the weights fit is seen when they are loaded.
    moved = {"encoder"} if built.own_encoder and wanted.own_encoder else set()
    images = any(leaf.kind == "image" for leaf in trainer.policy.layout.leaves)
    if not images and not built.own_encoder and not wanted.own_encoder:
        moved = {"encoder"}  # none is used
    theirs, mine = asdict(built), asdict(wanted)
    for name in mine.keys() - ONLY_AT_FIRST - without_critic - moved:
        if mine[name] != theirs[name]:
            raise UsageError(f"{name}={mine[name]}, but init_from={folder} was made with {theirs[name]}; drop {name}")
    # Without a critic on one side, the actor's half is loaded and the other left.
    _load_weights(trainer.policy, folder, files, strict=not without_critic)
    notes = [f"starting from the policy of {folder}"]
    if trainer.policy.has_critic and not facts["critic"]:
        notes.append("that run had no critic; this one starts with a fresh critic")
    return notes


def _check_spaces(trainer: Trainer, folder: Path, facts: dict[str, Any]) -> None:
    for name in ("observation_space", "action_space"):
        now = space_to_json(getattr(trainer.envs, name))
        if facts[name] != now:
            raise CheckpointError(
                f"the env's {name} is not the one that {folder} was made for: it was {facts[name]}, now it is {now}"
            )


def _facts(folder: Path, files: dict[str, bytes]) -> dict[str, Any]:
    """What `policy.json` says of the policy."""
    try:
        facts: dict[str, Any] = json.loads(files["policy.json"])
        missing = {"observation_space", "action_space", "policy", "critic", "masked"} - facts.keys()
        unknown = set(facts["policy"]) - {option.name for option in options(PolicyConfig)}
    except WRONG_CONTENT as error:
        raise CheckpointError(f"{folder / 'policy.json'} describes no policy: {error!r}") from None
    if missing or unknown:
        raise CheckpointError(f"{folder / 'policy.json'} describes no policy: {', '.join(sorted(missing | unknown))}")
    return facts


def _load_weights(policy: ActorCritic, folder: Path, files: dict[str, bytes], *, strict: bool = True) -> None:
    try:
        policy.load_state_dict(safetensors.torch.load(files["policy.safetensors"]), strict=strict)
    except (*WRONG_CONTENT, safetensors.SafetensorError) as error:
        raise CheckpointError(f"the weights of {folder} do not fit their description: {error}") from None
