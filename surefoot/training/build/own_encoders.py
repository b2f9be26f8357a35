"""Users' own encoders, by name or as a class. Code that only a file names needs the user's consent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from surefoot.errors import UsageError
from surefoot.training.life.trust import Trust, require_trusted_encoder
from surefoot.user_code import load_object

if TYPE_CHECKING:
    from surefoot.policies.config import PolicyConfig
    from surefoot.policies.user_encoder import EncoderClass


def handed_over(settings: dict[str, object]) -> tuple[EncoderClass | None, dict[str, object]]:
    """(the class passed as `encoder`, if any; the settings with its name instead)."""
    encoder = settings.get("encoder")
    if encoder is None or isinstance(encoder, str):
        return None, settings
    name = f"<{getattr(encoder, '__name__', type(encoder).__name__)}>"
    return check_encoder(encoder, name), {**settings, "encoder": name}


def load_encoder(config: PolicyConfig) -> EncoderClass | None:
    """The user's encoder class that the settings name; None if it is a built-in one. Executes the user's code."""
    if not config.own_encoder:
        return None
    if config.encoder_from_python:
        raise UsageError(
            f"the encoder {config.encoder} was passed in Python and is not recorded. The policy can be "
            "loaded there: surefoot.load(run, encoder=...). To be resumed, or evaluated from its directory, a run "
            "needs an encoder by name: file.py:Class or module:Class"
        )
    return check_encoder(load_object(config.encoder, "encoder"), config.encoder)


def check_encoder(encoder: object, name: str) -> EncoderClass:
    if isinstance(encoder, torch.nn.Module) or not callable(encoder):
        raise UsageError(
            f"encoder={name} is {'a module' if callable(encoder) else 'of type ' + type(encoder).__name__}; give the "
            "class itself, which is called with the Layout: the critic may need one of its own"
        )
    made: EncoderClass = encoder
    return made


@dataclass(frozen=True)
class EncoderCode:
    """Where a policy's own encoder may be loaded from."""

    given: EncoderClass | None = None  # a class passed in Python
    trust: Trust = False  # whether the code that a checkpoint names may be executed
    agreed: str | None = None  # an encoder that the user has already agreed to

    def of(self, config: PolicyConfig, source: Path) -> EncoderClass | None:
        if self.given is not None:
            if not config.own_encoder:
                raise UsageError(f"the policy of {source} has no encoder but ours; drop encoder")
            return self.given
        if config.own_encoder and not config.encoder_from_python and config.encoder != self.agreed:
            require_trusted_encoder(config.encoder, self.trust, source)
        return load_encoder(config)


NO_CODE = EncoderCode()
