"""What a run was made with: versions, machine, command, git commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from surefoot.runs.directory import RunDirectory
from surefoot.runs.files import read_json

PACKAGES = ("surefoot", "torch", "numpy", "gymnasium")


def build_manifest(**facts: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "command": sys.argv,
        "versions": _versions(),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "git_commit": _git_commit(),
        **facts,
    }


def different_versions(run: RunDirectory) -> list[str]:
    """What this process has other versions of than the run was made with: the bytes may differ, too."""
    then, now = read_json(run.manifest).get("versions"), _versions()
    if not isinstance(then, dict):
        return [f"note: {run.manifest} does not say what it was made with"]
    return [
        f"note: {name} is {now[name]} now and was {then[name]}"
        for name in now
        if then.get(name, now[name]) != now[name]
    ]


def _versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the working directory, where it is a git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
