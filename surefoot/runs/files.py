"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write beside `path`, flush to the disk, rename over it: a reader sees the old file or the new one."""
    beside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    raw = data.encode() if isinstance(data, str) else data
    try:
        with open(beside, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        fsync_directory(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def fsync_directory(path: Path) -> None:
    """Make renames inside a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


class JsonLines:
    """A log of one JSON object per line, flushed line by line. A torn last line of an earlier writer is cut off."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            data = path.read_bytes()
            if not data.endswith(b"\n"):
                os.truncate(path, data.rfind(b"\n") + 1)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def append(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a torn last one (the writer was killed) is left out."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
