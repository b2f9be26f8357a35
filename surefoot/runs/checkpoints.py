"""Checkpoint directories: complete, hashed and durable, or not there at all.

A checkpoint is first written as `.tmp-…`: every file, with `MANIFEST.json` (sizes and hashes) last, all fsynced. Then
the directory is fsynced and renamed to its step, and the parent fsynced. Only then does `LATEST` (and `BEST`, if it is
the best so far) point at it, and only then are old ones removed. After a kill at any point, the previous checkpoint
still verifies.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from surefoot.errors import CheckpointError
from surefoot.runs.files import fsync_directory, read_json, read_regular, sweep, write_all_durable, write_atomic

SCHEMA = 1
KEEP = 3
MANIFEST, LATEST, BEST = "MANIFEST.json", "LATEST", "BEST"
LARGEST_DAMAGED = 2**20  # bytes to read of a file that should be smaller
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_checkpoint(
    root: Path,
    step: int,
    files: Mapping[str, bytes],
    facts: Mapping[str, object],
    *,
    best: bool = False,
    keep: int | None = KEEP,
) -> Path:
    """Write `files` as `root/<step>` and make it the latest, and the best if `best`. `keep`: see `prune`.

    On a full disk, older checkpoints (all but the latest and the best) are removed to make room, unless all are to be
    kept. If that is not enough, the OSError says how many bytes are needed and free, and the older ones remain.
    """
    sweep(root)
    entries = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()}
    manifest = {"schema": SCHEMA, "step": step, "files": entries, **facts}
    manifest["seal"] = seal(manifest)
    whole = {**files, MANIFEST: (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()}
    try:
        try:
            target = _write_all(root, step, whole)
        except OSError as error:
            if error.errno not in DISK_FULL or keep is None or not _drop_spares(root):
                raise
            target = _write_all(root, step, whole)
        write_atomic(root / LATEST, f"{target.name}\n")
        if best:
            point_best(root, step)
    except OSError as error:
        if not root.is_dir():
            raise OSError(error.errno, "the directory is gone", str(root)) from error
        needed, free = sum(map(len, whole.values())), shutil.disk_usage(root).free
        why = f"{error.strerror}; {needed:,} bytes are needed, {free:,} are free"
        raise OSError(error.errno, why, str(root)) from error
    prune(root, keep)
    return target


def seal(manifest: Mapping[str, object]) -> str:
    """A hash of the manifest's own content without the seal, so that a flipped bit in it is noticed too."""
    rest = {name: value for name, value in manifest.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _write_all(root: Path, step: int, files: Mapping[str, bytes]) -> Path:
    beside = root / f".tmp-{step}-{os.getpid()}"
    try:
        beside.mkdir()
        write_all_durable({beside / name: data for name, data in files.items()})
        fsync_directory(beside)
        target = root / str(step)
        if target.exists():  # a run resumed from an older checkpoint reaches this step again
            set_aside(target)
        os.replace(beside, target)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    fsync_directory(root)
    return target


def _drop_spares(root: Path) -> bool:
    """Remove all but the latest (if it is sound) and the best. Returns whether anything was removed."""
    latest = pointed(root, LATEST)
    if latest is None:
        return False
    try:
        read_verified(latest)
    except CheckpointError:
        return False
    aside = list(root.glob("aside-*"))
    for folder in aside:
        shutil.rmtree(folder, ignore_errors=True)
    return bool(prune(root, keep=1) or aside)


def point_best(root: Path, step: int | None) -> None:
    """Record which checkpoint is the best by evaluation; None, or a missing directory: there is none."""
    if step is not None and (root / str(step)).is_dir():
        write_atomic(root / BEST, f"{step}\n")
    else:
        (root / BEST).unlink(missing_ok=True)


def pointed(root: Path, pointer: str) -> Path | None:
    """Where LATEST or BEST points; None if there is no such file or it holds no step."""
    try:
        name = read_regular(root / pointer, 100).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return root / name if is_step(name) else None


def is_step(name: str) -> bool:
    """Whether a directory of this name is a checkpoint."""
    return name.isascii() and name.isdigit() and len(name) < 19


def set_aside(folder: Path) -> Path:
    """Rename a damaged or superseded checkpoint. Nothing is deleted or overwritten."""
    for number in count(1):
        aside = folder.with_name(f"aside-{folder.name}-{number}")
        if not aside.exists():
            break
    os.replace(folder, aside)
    return aside


def steps_of(root: Path) -> list[Path]:
    """Checkpoints by step, oldest first."""
    found = [path for path in root.glob("*") if is_step(path.name) and os.path.isdir(path) and not os.path.islink(path)]
    return sorted(found, key=lambda path: int(path.name))


def has_checkpoints(root: Path) -> bool:
    """Whether any checkpoint was ever finished here, sound or not."""
    return bool(steps_of(root)) or os.path.exists(root / LATEST) or any(root.glob("aside-*"))


def prune(root: Path, keep: int | None = KEEP) -> list[Path]:
    """Remove all but the newest `keep`, the latest and the best; `keep` None removes none. Returns what was removed."""
    if keep is None:
        return []
    precious = (pointed(root, LATEST), pointed(root, BEST))
    old = [folder for folder in steps_of(root)[:-keep] if folder not in precious]
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return old


def read_verified(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, files) of a checkpoint whose bytes are all intact; CheckpointError otherwise."""
    if not os.path.lexists(folder / MANIFEST):
        raise CheckpointError(f"{folder} has no {MANIFEST}: it was not written completely, or is not a checkpoint")
    manifest = read_json(folder / MANIFEST)
    found = manifest.get("schema")
    if found != SCHEMA:
        newer = isinstance(found, int) and found > SCHEMA
        raise CheckpointError(
            f"{folder} has schema {found}; this version of surefoot reads schema {SCHEMA}"
            + (" (a newer surefoot wrote it: update yours)" if newer else "")
        )
    if manifest.get("seal") != seal(manifest):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it does not match its own hash")
    if is_step(folder.name) and manifest.get("step") != int(folder.name):
        raise CheckpointError(f"{folder} holds the checkpoint of step {manifest.get('step')}")
    try:
        entries = {plain_name(name): (int(e["bytes"]), str(e["sha256"])) for name, e in manifest["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is malformed: {error!r}") from None
    return manifest, {name: _read_hashed(folder / name, *entry) for name, entry in entries.items()}


def plain_name(name: str) -> str:
    """Check that a name stays inside the checkpoint's directory; a manifest may not point elsewhere."""
    if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"{name!r} is not a file name")
    return name


def _read_hashed(path: Path, size: int, sha256: str) -> bytes:
    try:
        data = read_regular(path, max(size, LARGEST_DAMAGED))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) != size:
        raise CheckpointError(f"{path} has {len(data)} bytes instead of {size}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError(f"{path} is damaged: its hash is not the one in {MANIFEST}")
    return data


def find_checkpoint(root: Path, which: str = "latest", *, strict: bool = False) -> tuple[Path, list[str]]:
    """(a checkpoint that verifies, which ones were skipped and why). `which`: latest, best, or a step.

    An older one may be used only for `latest`, and not even then with `strict`.
    """
    if which == "latest":
        first = pointed(root, LATEST)
        candidates = ([first] if first else []) + [p for p in reversed(steps_of(root)) if p != first]
    else:
        candidates = [_named(root, which)]
    notes: list[str] = []
    if which == "latest" and first is None and candidates:
        notes.append(f"{root / LATEST} is missing or holds no step; the newest checkpoint is used")
        if strict:
            raise CheckpointError(notes[0])
    for folder in candidates:
        try:
            read_verified(folder)
        except CheckpointError as error:
            if strict or which != "latest":
                raise
            notes.append(str(error))
            continue
        return folder, notes
    if notes:
        raise CheckpointError("this run has no intact checkpoint:\n  " + "\n  ".join(notes))
    raise CheckpointError(f"there is no checkpoint in {root} yet")


def _named(root: Path, which: str) -> Path:
    if which == "best":
        best = pointed(root, BEST)
        if best is None:
            raise CheckpointError(
                f"there is no best checkpoint in {root}: it is chosen by evaluations during training (--eval-every)"
            )
        return best
    step = which.replace("_", "").replace(",", "")
    if not is_step(step) or not os.path.isdir(root / step):
        known = ", ".join(path.name for path in steps_of(root)) or "none"
        raise CheckpointError(f"there is no checkpoint '{which}' in {root} (there are: {known}; or latest, best)")
    return root / step
