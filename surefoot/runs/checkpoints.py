"""Checkpoint directories: whole, hashed and durable, or not there at all.

A checkpoint is written as `.tmp-…`: every file, `MANIFEST.json` with sizes and hashes last, all fsynced, the directory
fsynced, renamed to its step, the parent fsynced; only then does `LATEST` (and, where it is the best so far, `BEST`)
point at it, and only then are old ones removed. A kill at any point leaves the previous checkpoint, which verifies.
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
LARGEST_DAMAGED = 2**20  # bytes that are read of a file that should have fewer
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
    """Write `files` as `root/<step>` and make it the latest, and the best where it is. `keep`: as `prune`.

    On a full disk the spare checkpoints (all but the latest and the best) make room for the new one, unless all are to
    be kept; if that is not enough, the OSError names the bytes that are needed and free, and the older ones stand.
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
    """A hash of the manifest's own content, the seal apart: a flipped bit in it must not go unnoticed, either."""
    rest = {name: value for name, value in manifest.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _write_all(root: Path, step: int, files: Mapping[str, bytes]) -> Path:
    beside = root / f".tmp-{step}-{os.getpid()}"
    try:
        beside.mkdir()
        write_all_durable({beside / name: data for name, data in files.items()})
        fsync_directory(beside)
        target = root / str(step)
        if target.exists():  # a run that was resumed from an older checkpoint comes by this step again
            set_aside(target)
        os.replace(beside, target)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    fsync_directory(root)
    return target


def _drop_spares(root: Path) -> bool:
    """Whether anything could be removed: all but the latest, if that one is sound, and the best."""
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
    """Say which checkpoint is the best by evaluation (or that none is, or that its directory is gone)."""
    if step is not None and (root / str(step)).is_dir():
        write_atomic(root / BEST, f"{step}\n")
    else:
        (root / BEST).unlink(missing_ok=True)


def pointed(root: Path, pointer: str) -> Path | None:
    """Where LATEST or BEST points; None where there is no such file or it holds no step."""
    try:
        name = read_regular(root / pointer, 100).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return root / name if is_step(name) else None


def is_step(name: str) -> bool:
    """Whether a directory of this name is a checkpoint's."""
    return name.isascii() and name.isdigit() and len(name) < 19


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
    found = [path for path in root.glob("*") if is_step(path.name) and os.path.isdir(path) and not os.path.islink(path)]
    return sorted(found, key=lambda path: int(path.name))


def has_checkpoints(root: Path) -> bool:
    """Whether any was ever finished here, sound or not."""
    return bool(steps_of(root)) or os.path.exists(root / LATEST) or any(root.glob("aside-*"))


def prune(root: Path, keep: int | None = KEEP) -> list[Path]:
    """Remove all but the newest few (None: none), the latest and the best; returns what was removed."""
    if keep is None:
        return []
    precious = (pointed(root, LATEST), pointed(root, BEST))
    old = [folder for folder in steps_of(root)[:-keep] if folder not in precious]
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return old


def read_verified(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(manifest, files) of a checkpoint whose every byte is as it was written; CheckpointError otherwise."""
    if not os.path.lexists(folder / MANIFEST):
        raise CheckpointError(f"{folder} has no {MANIFEST}: it was not written to the end, or is no checkpoint")
    manifest = read_json(folder / MANIFEST)
    found = manifest.get("schema")
    if found != SCHEMA:
        newer = isinstance(found, int) and found > SCHEMA
        raise CheckpointError(
            f"{folder} has schema {found}; this version of surefoot reads schema {SCHEMA}"
            + (" (a newer surefoot wrote it: update yours)" if newer else "")
        )
    if manifest.get("seal") != seal(manifest):
        raise CheckpointError(f"{folder / MANIFEST} is damaged: it does not fit its own hash")
    if is_step(folder.name) and manifest.get("step") != int(folder.name):
        raise CheckpointError(f"{folder} holds the checkpoint of step {manifest.get('step')}")
    try:
        entries = {plain_name(name): (int(e["bytes"]), str(e["sha256"])) for name, e in manifest["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is not as we write it: {error!r}") from None
    return manifest, {name: _read_hashed(folder / name, *entry) for name, entry in entries.items()}


def plain_name(name: str) -> str:
    """A file of the checkpoint's own directory; a manifest may not point elsewhere."""
    if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"{name!r} is no file name")
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
    """(a checkpoint that verifies, what had to be passed over and why). `which`: latest, best, or a step.

    Only for `latest` may an older one serve, and with `strict` not even there.
    """
    if which == "latest":
        first = pointed(root, LATEST)
        candidates = ([first] if first else []) + [p for p in reversed(steps_of(root)) if p != first]
    else:
        candidates = [_named(root, which)]
    notes: list[str] = []
    if which == "latest" and first is None and candidates:
        notes.append(f"{root / LATEST} is missing or holds no step; the newest checkpoint serves")
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
        raise CheckpointError("no checkpoint of this run is whole:\n  " + "\n  ".join(notes))
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
