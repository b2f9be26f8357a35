"""Records what a run was made with: versions, machine, command, git commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from surefoot.runs.directory import RunDirectory
from surefoot.runs.files import read_json

PACKAGES = ("surefoot", "torch", "numpy", "gymnasium")
GPU = "GPU"  # in messages
SCHEMA = 1  # the version of manifest.json


def build_manifest(**facts: object) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "command": sys.argv,
        "versions": _versions(),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "processor": processor()},
        "git_commit": _git_commit(),
        **facts,
    }


def other_schema(manifest: Mapping[str, object]) -> str | None:
    """Who wrote a run whose files may mean something else than ours; None if they are ours."""
    schema = manifest.get("schema", SCHEMA)
    if schema == SCHEMA:
        return None
    if isinstance(schema, int) and schema > SCHEMA:
        return f"written by a newer surefoot (schema {schema}); update yours"
    return f"written by another version of surefoot (schema {schema!r:.40})"


def different_versions(run: RunDirectory) -> list[str]:
    """Packages whose versions differ from those the run was made with; the bytes may differ then."""
    then, now = read_json(run.manifest).get("versions"), _versions()
    if not isinstance(then, dict):
        return [f"note: {run.manifest} does not say which versions it was made with"]
    return [
        f"note: {name} is {now[name]} now and was {then[name]}"
        for name in now
        if then.get(name, now[name]) != now[name]
    ]


def used_kernels(run: RunDirectory) -> bool:
    """Whether the compiled kernels may have acted or learned in a run."""
    return read_json(run.manifest).get("engine") != "torch"


def different_machine(run: RunDirectory, here: Mapping[str, object], *, kernels: bool) -> list[str]:
    """Instruction sets and GPUs that differ from those of the machine where the run started; bits differ then.

    `here`: this process's manifest, or part of it. `kernels`: whether the run uses the compiled kernels.
    """
    there = read_json(run.manifest)
    if "kernels" not in there:
        return ["note: the run does not say which instruction set it began with; it is exact only on the same one"]
    now, then = _instructions(here, kernels), _instructions(there, kernels)
    if GPU not in then:  # an earlier version, or begun on a CPU
        now.pop(GPU, None)
    other = [f"{name} {now[name]} here, {then.get(name)} there" for name in now if now[name] != then.get(name)]
    if not other:
        return []
    return [f"note: not exact to the last bit, because the run began on another kind of machine: {'; '.join(other)}"]


def _instructions(facts: Mapping[str, object], kernels: bool) -> dict[str, object]:
    """The instruction sets that determine the last bits, by name."""
    named = facts["kernels"] if kernels else None
    said = named if isinstance(named, dict) else {}
    found = {"kernels": said.get("variant"), "compiler": said.get("compiler")} if kernels else {}
    found |= {"PyTorch": facts["torch_instructions"]} if "torch_instructions" in facts else {}
    return found | ({GPU: facts["gpu"]} if "gpu" in facts else {})


def processor() -> str:
    """The model name of the CPU, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _versions() -> dict[str, str | None]:
    return {name: version_of(name) for name in PACKAGES} | {"python": platform.python_version()}


def version_of(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the working directory, if it is a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, encoding="ascii", timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
