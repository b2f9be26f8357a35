"""Reads a checkpoint's policy: its description and its weights, both checked before use."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import safetensors.torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from surefoot.errors import CheckpointError, SurefootError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.schema import ArrayOf, Flag, Misfit, Record, Shape, Table
from surefoot.settings import options
from surefoot.spaces.as_json import space_from_json
from surefoot.training.build.parts import initial_policy

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from torch import Tensor

    from surefoot.training.build.own_encoders import EncoderCode

# Exceptions that a malformed but correctly hashed file can cause.
WRONG_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RuntimeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    safetensors.SafetensorError,
)


class Anything:
    """A field that is checked by the code that reads it."""

    def check(self, value: object, where: str = "") -> None:
        pass


TABLE = Table(Anything())
FACTS = Record(observation_space=TABLE, action_space=TABLE, policy=TABLE, critic=Flag(), masked=Flag())


class PolicyFacts(TypedDict):
    """`policy.json`. Spaces are as written by `space_to_json`; `policy` holds the settings by name."""

    observation_space: dict[str, object]
    action_space: dict[str, object]
    policy: dict[str, Any]
    critic: bool
    masked: bool


@dataclass(frozen=True)
class Described:
    """The two `policy.*` files of a checkpoint."""

    folder: Path
    facts: PolicyFacts  # policy.json
    weights: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path, files: dict[str, bytes]) -> Described:
        """`files`: the contents of the checkpoint `folder`, with verified hashes."""
        try:
            facts: PolicyFacts = json.loads(files["policy.json"])
            FACTS.check(facts)
            if unknown := facts["policy"].keys() - {option.name for option in options(PolicyConfig)}:
                raise Misfit(f"policy.{min(unknown)} is not known")
        except WRONG_CONTENT as error:
            raise CheckpointError(f"{folder / 'policy.json'} describes no policy: {_why(error)}") from None
        try:
            weights: dict[str, Tensor] = safetensors.torch.load(files["policy.safetensors"])
        except WRONG_CONTENT as error:
            raise CheckpointError(f"{folder / 'policy.safetensors'} cannot be read: {_why(error)}") from None
        return cls(folder, facts, weights)

    def config(self) -> PolicyConfig:
        try:
            return PolicyConfig(**self.facts["policy"])
        except (*WRONG_CONTENT, SurefootError) as error:
            raise self._unbuildable(error) from None

    def build(self, code: EncoderCode, seed: int = 0) -> ActorCritic:
        """The described policy, with the initial weights of a run with this seed."""
        config = self.config()
        encoder = code.of(config, self.folder)
        try:
            facts = self.facts
            observations, actions = space_from_json(facts["observation_space"]), space_from_json(facts["action_space"])
            known = sum(tensor.numel() for tensor in self.weights.values())
            with nullcontext() if config.own_encoder else no_larger_than(known):  # a user's encoder may be of any size
                return initial_policy(
                    observations, actions, config, seed, critic=facts["critic"], masked=facts["masked"], encoder=encoder
                )
        except (*WRONG_CONTENT, SurefootError) as error:
            raise self._unbuildable(error) from None

    def _unbuildable(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"{self.folder} describes a policy that this version cannot build: {_why(error)}")

    def fill(self, policy: ActorCritic, *, strict: bool = True) -> None:
        """Load the weights. Without `strict`, tensors that only one side has are ignored."""
        try:
            weights_shape(policy, self.weights).check(self.weights)
            policy.load_state_dict(self.weights, strict=strict)
        except WRONG_CONTENT as error:
            file = self.folder / "policy.safetensors"
            raise CheckpointError(f"the weights in {file} do not fit their description: {_why(error)}") from None


def weights_shape(policy: ActorCritic, names: Container[str]) -> Shape:
    """The shapes that this policy's weights must have, for those among `names`. All numbers must be finite,

    except in the buffers of a user's own encoder, which may hold anything.
    """
    parameters = {name for name, _ in policy.named_parameters(remove_duplicate=False)}
    fields: dict[str, Shape] = {}
    for name, tensor in policy.state_dict().items():
        ours = name in parameters or not policy.config.own_encoder
        low = 0.0 if name in ("normalizer.var", "normalizer.count") else None
        fields[name] = ArrayOf(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), low, finite=ours)
    return Record({name: shape for name, shape in fields.items() if name in names})


@contextmanager
def no_larger_than(count: int) -> Iterator[None]:
    """Limit the parameters of all modules that this thread builds inside; Misfit is raised before the next is filled.

    A description of a few bytes can request a network of any size. PyTorch registers a parameter when its memory is
    reserved but not yet touched.
    """
    here, left = threading.get_ident(), count

    def registered(module: object, name: str, parameter: Tensor | None) -> None:
        nonlocal left
        if threading.get_ident() == here and parameter is not None:
            left -= math.prod(parameter.shape)
            if left < 0:
                raise Misfit(f"it has more than the {count:,} parameters whose values are there")

    hook = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        hook.remove()


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, (Misfit, SurefootError, safetensors.SafetensorError)) else repr(error)
