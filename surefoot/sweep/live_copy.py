"""Copies a run directory while its run goes on, so that the copy can be resumed at any moment.

`find_changes` reads what is new in one directory, and `write_changes` writes it into another. What is read first is
written last: a status, the pointers to checkpoints, the checkpoints, and then everything else. So the logs of a copy
are never behind its checkpoints, and a copy that says "done" is complete.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from zlib import crc32

from surefoot.errors import SurefootError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import BEST, LATEST, MANIFEST, is_step, set_aside
from surefoot.runs.files import fsync_directory, write_all_durable, write_atomic
from surefoot.runs.hold import LOCK

WINDOW = 2**16  # bytes before the end of a log that are compared, to see whether it has only grown
APPENDED = (".jsonl", ".csv", ".txt")
EARLY = ("config.toml", "manifest.json")  # with these, a copy that was cut off is known as a run
CHECKPOINTS = "checkpoints"


class Mark(NamedTuple):
    """What is known of a file, or of a checkpoint by its manifest."""

    size: int
    inode: int
    modified: int
    tail: int  # checksum of the last WINDOW bytes


Marks = Mapping[str, Mark]


class Change(NamedTuple):
    """The content of a file from `offset` to its end."""

    name: str  # below the run directory, with slashes
    offset: int
    data: bytes


@dataclass(frozen=True)
class Changes:
    """What is new in a run directory, and the marks of all that is there."""

    files: tuple[Change, ...]
    checkpoints: Mapping[str, Mapping[str, bytes]]  # whole ones, by step and file name
    pointers: tuple[Change, ...]
    status: tuple[Change, ...]
    gone: tuple[str, ...]
    marks: Marks


def find_changes(directory: RunDirectory, known: Marks) -> Changes:
    """What has changed since the marks were taken. The run may go on writing meanwhile."""
    marks: dict[str, Mark] = {}
    root = directory.path
    status = _changed(root, [directory.status], known, marks)
    pointer_marks: dict[str, Mark] = {}
    pointers = _changed(root, [directory.checkpoints / name for name in (LATEST, BEST)], known, pointer_marks)
    checkpoints = {}
    for folder in sorted(directory.checkpoints.glob("[0-9]*")):
        with suppress(OSError):  # the run has removed it meanwhile
            found = _new_checkpoint(folder, known, marks)
            if found:
                checkpoints[folder.name] = found
    sound = []
    for change in pointers:
        if f"{CHECKPOINTS}/{change.data.decode(errors='replace').strip()}" in marks:
            sound.append(change)
        else:  # newer than the checkpoints found; the next look will have both
            del pointer_marks[change.name]
            marks |= {name: known[name] for name in (change.name,) if name in known}
    marks |= pointer_marks
    files = _changed(root, sorted(_others(directory), key=_writing_order), known, marks)
    return Changes(files, checkpoints, tuple(sound), status, tuple(name for name in known if name not in marks), marks)


def write_changes(directory: RunDirectory, changes: Changes) -> None:
    """Bring a copy up to date. If this is killed halfway, the copy can be resumed, and the same be written again."""
    root = directory.path
    directory.checkpoints.mkdir(parents=True, exist_ok=True)
    for change in changes.files:
        _write(root, change, durable=bool(changes.checkpoints))
    for step, files in changes.checkpoints.items():
        _write_checkpoint(_inside(directory.checkpoints, step), files)
    for change in changes.pointers:
        _write(root, change, durable=True)
    for name in changes.gone:
        with suppress(OSError):  # already gone, or a checkpoint
            _inside(root, name).unlink()
    for folder in directory.checkpoints.iterdir():
        if is_step(folder.name) and f"{CHECKPOINTS}/{folder.name}" not in changes.marks:
            shutil.rmtree(folder, ignore_errors=True)
    for change in changes.status:
        _write(root, change, durable=True)


def _others(directory: RunDirectory) -> Iterator[Path]:
    """Every file that is neither the status nor below `checkpoints/`."""
    for folder, folders, names in os.walk(directory.path):
        if Path(folder) == directory.path and CHECKPOINTS in folders:
            folders.remove(CHECKPOINTS)
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".tmp-") and path not in (directory.status, directory.path / LOCK):
                yield path


def _writing_order(path: Path) -> tuple[int, str]:
    return EARLY.index(path.name) if path.name in EARLY else len(EARLY), str(path)


def _changed(root: Path, paths: list[Path], known: Marks, marks: dict[str, Mark]) -> tuple[Change, ...]:
    """The changes of these files; their marks are added to `marks`."""
    found = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        with suppress(OSError):  # not there, or removed meanwhile
            marks[name], change = _compare(path, name, known.get(name))
            if change is not None:
                found.append(change)
    return tuple(found)


def _compare(path: Path, name: str, before: Mark | None) -> tuple[Mark, Change | None]:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(f"{path} is no plain file")
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        if before is not None and before[:3] == (state.st_size, state.st_ino, state.st_mtime_ns):
            return before, None
        grown = before is not None and _is_appended(name) and _tail(file, before.size) == before.tail
        offset = before.size if before is not None and grown else 0
        file.seek(offset)
        data = file.read()
        end = offset + len(data)
        mark = Mark(end, state.st_ino, state.st_mtime_ns, _tail(file, end))
        return mark, None if grown and not data else Change(name, offset, data)


def _is_appended(name: str) -> bool:
    return name.endswith(APPENDED) or ".tfevents." in name


def _tail(file: BinaryIO, end: int) -> int:
    """A checksum of the bytes before `end`; of something else if the file is shorter."""
    start = max(0, end - WINDOW)
    file.seek(start)
    data = file.read(end - start)
    return crc32(data) if len(data) == end - start else -1


def _new_checkpoint(folder: Path, known: Marks, marks: dict[str, Mark]) -> dict[str, bytes] | None:
    """The files of a checkpoint, if the copy does not have it."""
    if not is_step(folder.name):
        return None
    name = f"{CHECKPOINTS}/{folder.name}"
    manifest = (folder / MANIFEST).read_bytes()
    mark = Mark(len(manifest), 0, 0, crc32(manifest))
    if known.get(name) == mark:
        marks[name] = mark
        return None
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}
    marks[name] = mark
    return {**files, MANIFEST: manifest}


def _inside(root: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise SurefootError(f"a node sent a file for a place outside of its run: {name}")
    return root / parts


def _write(root: Path, change: Change, *, durable: bool) -> None:
    path = _inside(root, change.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not change.offset:
        write_atomic(path, change.data)
        return
    with open(path, "r+b") as file:
        file.seek(change.offset)
        file.write(change.data)
        file.truncate()
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _write_checkpoint(target: Path, files: Mapping[str, bytes]) -> None:
    if target.exists():
        with suppress(OSError):
            if (target / MANIFEST).read_bytes() == files[MANIFEST]:
                return
    beside = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    write_all_durable({beside / PurePosixPath(name).name: data for name, data in files.items()})
    fsync_directory(beside)
    if target.exists():
        set_aside(target)
    os.replace(beside, target)
    fsync_directory(target.parent)
