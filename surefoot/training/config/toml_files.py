"""The settings of a run as its `config.toml`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.training.config.resolve import TrainConfig


def to_toml(config: TrainConfig) -> str:
    """The effective settings; `none` stands for None, which TOML lacks."""
    import tomli_w

    plain = {
        name: "none" if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in config.flat().items()
    }
    for name, value in plain.items():
        if isinstance(value, dict):  # written as JSON text, which can represent null
            try:
                plain[name] = json.dumps(value)
            except TypeError as error:
                raise UsageError(f"{name} cannot be saved ({error}); pass a function that makes the env") from None
    written = tomli_w.dumps(plain)
    try:
        written.encode()
    except UnicodeEncodeError:
        odd = [name for name, value in plain.items() if not _is_text(value)]
        raise UsageError(
            f"{' and '.join(odd)}: a name that is not UTF-8 cannot be written into config.toml; rename the file"
        ) from None
    return written


def _is_text(value: object) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True
