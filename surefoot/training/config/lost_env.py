"""Runs whose env cannot be made again: the run does not name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.runs.files import read_json
from surefoot.training.config.resolve import read_outline

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory

UNKNOWN_ENV = "unknown-env"  # the name of the env of an imported model, if none was given


def lost_env(directory: RunDirectory, instead: str = "") -> str | None:
    """Why the env of a run cannot be made again; None if it can. `instead`: advice if it was made in Python."""
    if not read_json(directory.manifest).get("env_from_python"):
        return None
    if read_outline(directory.config).env.env == UNKNOWN_ENV:
        return (
            f"{directory.path} was imported without its env; import it again and name the env: "
            "surefoot import-sb3 FILE.zip --env ENV"
        )
    return f"{directory.path} was trained on an env made in Python, which is not recorded{instead}"
