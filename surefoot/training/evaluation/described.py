"""Reads a checkpoint's policy: its description and its weights, both checked before use."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import safetensors.torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from surefoot.errors import CheckpointError, SurefootError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.schema import ArrayOf, Misfit, Record, Shape
from surefoot.spaces.as_json import space_from_json
from surefoot.training.build.parts import initial_policy
from surefoot.training.evaluation.facts import (
    WRONG_CONTENT,
    PolicyFacts,
    policy_config,
    read_facts,
    unbuildable,
    why,
)

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from torch import Tensor

    from surefoot.policies.config import PolicyConfig
    from surefoot.training.build.own_encoders import EncoderCode


@dataclass(frozen=True)
class Described:
    """The two `policy.*` files of a checkpoint."""

    folder: Path
    facts: PolicyFacts  # policy.json
    weights: dict[str, Tensor]

    @classmethod
    def read(cls, folder: Path, files: dict[str, bytes]) -> Described:
        """`files`: the contents of the checkpoint `folder`, with verified hashes."""
        facts = read_facts(folder, files)
        try:
            weights: dict[str, Tensor] = safetensors.torch.load(files["policy.safetensors"])
        except WRONG_CONTENT as error:
            raise CheckpointError(f"{folder / 'policy.safetensors'} cannot be read: {why(error)}") from None
        return cls(folder, facts, weights)

    def config(self) -> PolicyConfig:
        return policy_config(self.folder, self.facts)

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
            raise unbuildable(self.folder, error) from None

    def fill(self, policy: ActorCritic, *, strict: bool = True) -> None:
        """Load the weights. Without `strict`, tensors that only one side has are ignored."""
        try:
            weights_shape(policy, self.weights).check(self.weights)
            policy.load_state_dict(self.weights, strict=strict)
        except WRONG_CONTENT as error:
            file = self.folder / "policy.safetensors"
            raise CheckpointError(f"the weights in {file} do not fit their description: {why(error)}") from None


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
