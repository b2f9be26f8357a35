"""`policy.json` of a checkpoint: the description of its policy, checked before use. Imports no torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from safetensors import SafetensorError

from surefoot.errors import CheckpointError, SurefootError
from surefoot.policies.config import PolicyConfig
from surefoot.schema import Flag, MapOf, Misfit, Record
from surefoot.settings import options

if TYPE_CHECKING:
    from pathlib import Path

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
    SafetensorError,
)


class Anything:
    """A field that is checked by the code that reads it."""

    def check(self, value: object, where: str = "") -> None:
        pass


TABLE = MapOf(Anything())
FACTS = Record(observation_space=TABLE, action_space=TABLE, policy=TABLE, critic=Flag(), masked=Flag())


class PolicyFacts(TypedDict):
    """`policy.json`. Spaces are as written by `space_to_json`; `policy` holds the settings by name."""

    observation_space: dict[str, object]
    action_space: dict[str, object]
    policy: dict[str, Any]
    critic: bool
    masked: bool


def read_facts(folder: Path, files: dict[str, bytes]) -> PolicyFacts:
    """`files`: the contents of the checkpoint `folder`, with verified hashes."""
    try:
        facts: PolicyFacts = json.loads(files["policy.json"])
        FACTS.check(facts)
        if unknown := facts["policy"].keys() - {option.name for option in options(PolicyConfig)}:
            raise Misfit(f"policy.{min(unknown)} is not known")
    except WRONG_CONTENT as error:
        raise CheckpointError(f"{folder / 'policy.json'} describes no policy: {why(error)}") from None
    return facts


def policy_config(folder: Path, facts: PolicyFacts) -> PolicyConfig:
    try:
        return PolicyConfig(**facts["policy"])
    except (*WRONG_CONTENT, SurefootError) as error:
        raise unbuildable(folder, error) from None


def unbuildable(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{folder} describes a policy that this version cannot build: {why(error)}")


def why(error: Exception) -> str:
    return str(error) if isinstance(error, (Misfit, SurefootError, SafetensorError)) else repr(error)
