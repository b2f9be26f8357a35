"""A run as one file to send: a zip with the sizes and hashes of everything in it.

`pack` writes only files that this list knows, and `unpack` accepts only those, so no path in a zip leads anywhere else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from surefoot.errors import BusyError, CheckpointError, UsageError
from surefoot.runs.checkpoints import BEST, LATEST, MANIFEST, find_checkpoint, pointed, read_verified
from surefoot.runs.directory import RunDirectory
from surefoot.runs.files import BROKEN, open_regular, read_regular, write_atomic
from surefoot.runs.zips import NO_ZIP, entries_of, plain, read_entry
from surefoot.schema import Items, Misfit, Record, Row, Text, Whole

FORMAT = 1
CONTENTS = "PACK.json"
LOGS = ("metrics.jsonl", "timings.jsonl", "episodes.csv", "log.txt", "result.json", "status.json")
NEEDED = ("config.toml", "manifest.json")
KNOWN = re.compile(
    rf"({'|'.join(map(re.escape, (*NEEDED, *LOGS)))}"
    rf"|checkpoints/({LATEST}|{BEST}|[0-9]{{1,18}}/({re.escape(MANIFEST)}|(policy|state)\.(json|safetensors))))"
)
LARGEST_CONTENTS = 2**20  # bytes of PACK.json
LARGEST = 4 * 2**30  # bytes of all files together; a run of a large network has less
BLOCK = 2**20
WHEN = (1980, 1, 1, 0, 0, 0)  # two packs of the same run are the same bytes
SHAPE = Record(format=Whole(), files=Items(Row(Text(), Whole(), Text())))


def pack(run: RunDirectory, out: Path) -> list[str]:
    """Write the run's settings, logs, and its latest and best checkpoints to the zip `out`. Returns their names."""
    if run.is_locked():
        raise BusyError(f"{run.path} is still being trained; pack it when it has stopped")
    own = dict(_files(run))
    listed = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in own.items()]
    files = {CONTENTS: json.dumps({"format": FORMAT, "files": listed}, indent=1).encode(), **own}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, WHEN)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, data)
    try:
        write_atomic(out, packed.getvalue())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another --out") from None
    return list(own)


def _files(run: RunDirectory) -> Iterator[tuple[str, bytes]]:
    for name in (*NEEDED, *LOGS):
        if name in NEEDED or os.path.lexists(run.path / name):
            yield name, _read(run.path / name)
    latest, _ = find_checkpoint(run.checkpoints)
    best = pointed(run.checkpoints, BEST)
    yield f"checkpoints/{LATEST}", f"{latest.name}\n".encode()
    folders = {latest}
    if best is not None and os.path.isdir(best):
        yield f"checkpoints/{BEST}", f"{best.name}\n".encode()
        folders.add(best)
    for folder in sorted(folders, key=lambda path: int(path.name)):
        _, content = read_verified(folder)
        for name, data in {MANIFEST: _read(folder / MANIFEST), **content}.items():
            if KNOWN.fullmatch(f"checkpoints/{folder.name}/{name}"):
                yield f"checkpoints/{folder.name}/{name}", data


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link; only a run's own files are packed")
        return read_regular(path, LARGEST)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def unpack(file: Path, out: Path, largest: int = LARGEST) -> RunDirectory:
    """Write the run in the zip `file` to the new folder `out`, or nothing if anything in it is not as it should be.

    `largest`: bytes of all files together.
    """
    if os.path.lexists(out):
        raise UsageError(f"{out} exists already; choose another --out")
    beside = out.with_name(f".tmp-{out.name}-{os.getpid()}")
    try:
        with open_regular(file) as stream:
            out.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            _extract(stream, beside, largest)
        _require_run(beside)
        os.rename(beside, out)
    except NO_ZIP as error:
        raise CheckpointError(f"{file} is not a packed run: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot unpack {file} to {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return RunDirectory(out)


def _extract(stream: IO[bytes], target: Path, largest: int) -> None:
    with zipfile.ZipFile(stream) as archive:
        by_name = entries_of(archive)
        if CONTENTS not in by_name:
            raise Misfit(f"it has no {CONTENTS}")
        listed = _contents(archive, by_name[CONTENTS])
        if set(by_name) != {CONTENTS, *listed}:
            raise Misfit(f"its files are not those that {CONTENTS} lists")
        total = sum(size for size, _ in listed.values())
        if total > largest:
            raise Misfit(f"it holds {total:,} bytes, more than the {largest:,} that are allowed")
        if total > (free := shutil.disk_usage(target).free):
            raise OSError(28, f"it needs {total:,} bytes, and {free:,} are free")
        for name, (size, sha256) in listed.items():
            _extract_one(archive, by_name[name], target, size, sha256)


def _contents(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Mapping[str, tuple[int, str]]:
    """Name → (bytes, sha256), as the zip itself claims."""
    data = read_entry(archive, entry, LARGEST_CONTENTS)
    try:
        found = json.loads(data)
    except BROKEN as error:
        raise Misfit(f"its {CONTENTS} is damaged: {error}") from None
    SHAPE.check(found, CONTENTS)
    if found["format"] != FORMAT:
        raise Misfit(f"it has format {found['format']}; this version of surefoot reads format {FORMAT}")
    listed = {name: (size, sha256) for name, size, sha256 in found["files"]}
    for name in listed:
        if not KNOWN.fullmatch(name):
            raise Misfit(f"{name!r} is not a file of a run")
    return listed


def _extract_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, size: int, sha256: str) -> None:
    path, hashed, left = target / entry.filename, hashlib.sha256(), size
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(plain(entry)) as stream, open(path, "xb") as out:
        while block := stream.read(min(BLOCK, left + 1)):  # never more than was claimed, however well it compresses
            left -= len(block)
            if left < 0:
                break
            hashed.update(block)
            out.write(block)
    if left or hashed.hexdigest() != sha256:
        raise Misfit(f"{entry.filename} is damaged: its size or its hash is not the one in {CONTENTS}")


def _require_run(folder: Path) -> None:
    for name in NEEDED:
        if not (folder / name).is_file():
            raise Misfit(f"it has no {name}")
    find_checkpoint(folder / "checkpoints", strict=True)
