"""Checkpoint directories: whole, hashed and durable, or not there at all.

A checkpoint is written as `.tmp-…`: every file fsynced, `MANIFEST.json` with sizes and hashes last, the directory
fsynced, renamed to its step, the parent fsynced; only then does `LATEST` point at it, and only then are old ones
removed. A kill at any point leaves the previous checkpoint, which verifies.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from surefoot.errors import CheckpointError
from surefoot.runs.files import fsync_directory, read_json, write_atomic

SCHEMA = 1
KEEP = 3
MANIFEST = "MANIFEST.json"


def write_checkpoint(root: Path, step: int, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> Path:
    """Write `files` as `root/<step>` and make it the latest."""
    clean(root)
    beside = root / f".tmp-{step}-{os.getpid()}"
    beside.mkdir()
    for name, data in files.items():
        _write(beside / name, data)
    entries = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()}
    manifest = {"schema": SCHEMA, "step": step, "files": entries, **facts}
    _write(beside / MANIFEST, (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())
    fsync_directory(beside)
    target = root / str(step)
    if target.exists():  # a run that was resumed from an older checkpoint comes by this step again
        set_aside(target)
    os.replace(beside, target)
    fsync_directory(root)
    write_atomic(root / "LATEST", f"{target.name}\n")
    prune(root, keep=target)
    return target


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def set_aside(folder: Path) -> Path:
    """Rename a checkpoint that is damaged or superseded; nothing is deleted, no name is used twice."""
    for number in count(1):
        aside = folder.with_name(f"aside-{folder.name}-{number}")
        if not aside.exists():
            break
    os.replace(folder, aside)
    return aside


def steps_of(root: Path) -> list[Path]:
    """Checkpoints by step, oldest first."""
    found = [path for path in root.glob("*") if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def prune(root: Path, keep: Path) -> None:
    """Keep the newest three (and `keep`)."""
    for old in steps_of(root)[:-KEEP]:
        if old != keep:
            shutil.rmtree(old, ignore_errors=True)


def clean(root: Path) -> None:
    """Remove what a killed writer left."""
    for rest in root.glob(".tmp-*"):
        shutil.rmtree(rest, ignore_errors=True) if rest.is_dir() else rest.unlink(missing_ok=True)


def read_verified(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, files) of a checkpoint whose every byte is as it was written; CheckpointError otherwise."""
    try:
        manifest = read_json(folder / MANIFEST)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {MANIFEST}: it was not written to the end, or is no checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        raise CheckpointError(f"{folder} has schema {found}; this version of surefoot reads schema {SCHEMA}")
    if folder.name.isdigit() and manifest.get("step") != int(folder.name):
        raise CheckpointError(f"{folder} holds the checkpoint of step {manifest.get('step')}")
    files = {name: _read_hashed(folder / name, entry) for name, entry in manifest["files"].items()}
    return manifest, files


def _read_hashed(path: Path, entry: Mapping[str, Any]) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) != entry["bytes"]:
        raise CheckpointError(f"{path} has {len(data)} bytes instead of {entry['bytes']}")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its hash is not the one in {MANIFEST}")
    return data


def find_checkpoint(root: Path, which: str = "latest") -> tuple[Path, list[str]]:
    """(a checkpoint that verifies, what had to be passed over and why). `which`: latest, or a step."""
    if which != "latest":
        folder = root / which
        if not folder.is_dir():
            known = ", ".join(path.name for path in steps_of(root)) or "none"
            raise CheckpointError(f"there is no checkpoint '{which}' in {root} (there are: {known})")
        read_verified(folder)
        return folder, []
    notes = []
    pointed = root / (root / "LATEST").read_text().strip() if (root / "LATEST").exists() else None
    candidates = ([pointed] if pointed else []) + [p for p in reversed(steps_of(root)) if p != pointed]
    for folder in candidates:
        try:
            read_verified(folder)
        except CheckpointError as error:
            notes.append(str(error))
            continue
        return folder, notes
    if notes:
        raise CheckpointError("no checkpoint of this run is whole:\n  " + "\n  ".join(notes))
    raise CheckpointError(f"there is no checkpoint in {root} yet")
