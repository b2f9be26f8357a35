"""Finds the checkpoint that a user means."""

from __future__ import annotations

import os
from pathlib import Path

from surefoot.runs.checkpoints import MANIFEST, find_checkpoint
from surefoot.runs.index import find_run


def locate_checkpoint(source: str | Path, which: str = "latest", *, strict: bool = False) -> tuple[Path, list[str]]:
    """A checkpoint that verifies, of a run by name or at a path, and the reasons why newer ones were skipped."""
    if os.path.exists(Path(source) / MANIFEST):  # False if no file can have this name
        return Path(source), []
    return find_checkpoint(find_run(source).checkpoints, which, strict=strict)
