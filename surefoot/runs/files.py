"""Atomic files, and logs that survive a full disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from surefoot.errors import CheckpointError, UsageError

LARGEST = 256 * 2**20  # bytes of the largest JSON file that is read
# Links are not followed. On Windows, where links are rare, binary mode keeps "\n" as it is.
NOT_EVERYWHERE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
LONGEST_LINE = 16 * 2**20  # bytes of the longest row of metrics
BLOCK = 2**16  # bytes read at once when looking for the end of a log
BROKEN = (ValueError, RecursionError)  # raised by reading JSON: invalid JSON or text, deep nesting


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a temporary file, flush it to disk, and rename it to `path`: readers see the old file or the new one."""
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    beside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    raw = data.encode() if isinstance(data, str) else data
    try:
        write_durable(beside, raw)
        os.replace(beside, path)
        fsync_directory(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_output(path: Path, data: str | bytes) -> None:
    """Write a file that the user named: as a whole, or into a device or a pipe (/dev/stdout), which is not replaced."""
    if path.exists() and not path.is_file():
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    else:
        write_atomic(path, data)


@contextmanager
def write_errors_told(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write a file that the user named into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write_durable(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    write_all_durable({path: data})


def write_all_durable(files: Mapping[Path, bytes]) -> None:
    """Write files and wait until the disk has them all. Writing all before waiting is faster."""
    with ExitStack() as leaving:
        opened = []
        for path, data in files.items():
            file = leaving.enter_context(open(path, "wb"))
            file.write(data)
            file.flush()
            opened.append(file)
        for file in opened:
            os.fsync(file.fileno())


def sweep(folder: Path) -> None:
    """Remove temporary files of a killed writer; links are removed, not followed."""
    for rest in folder.glob(".tmp-*"):
        with suppress(OSError):
            shutil.rmtree(rest) if rest.is_dir() and not rest.is_symlink() else rest.unlink()


def fsync_directory(path: Path) -> None:
    """Make renames inside a directory durable. Windows needs no fsync for this, and cannot open directories."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: object) -> None:
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_regular(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a regular file no larger than `limit`. Pipes, devices and larger files are not even opened."""
    size = _require_regular(path).st_size
    if size > limit:
        raise OSError(errno.EFBIG, f"{size:,} bytes are too many for this file", str(path))
    return path.read_bytes()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file; OSError for pipes and devices, which might be waited for without end."""
    _require_regular(path)
    return open(path, "rb")


def _require_regular(path: Path) -> os.stat_result:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return status


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a run's file; CheckpointError if there is none, because a stranger may have written it."""
    try:
        found = json.loads(read_regular(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except BROKEN as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it holds no JSON object")
    return found


class AppendedFile:
    """Appends whole records to a file, each with one system call.

    Appending never raises: what a full disk refuses waits in `pending`, in order, and is written with a later record.
    A record is in the file completely or not at all, even if the disk took only part of it.
    """

    def __init__(self, path: Path, pending: Iterable[bytes] = ()) -> None:
        self.path, self.pending = path, list(pending)
        self.error: OSError | None = None  # why the last attempt failed
        self._handle: int | None = None

    def append(self, record: bytes) -> bool:
        """Append a record. Returns whether everything up to it is in the file."""
        self.pending.append(record)
        return self.flush()

    def flush(self) -> bool:
        if not self.pending:
            return True
        data = b"".join(self.pending)
        try:
            if self._handle is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NOT_EVERYWHERE
                self._handle = os.open(self.path, flags, 0o666)
            size = os.fstat(self._handle).st_size
            try:
                written = os.write(self._handle, data)
                if written < len(data):  # the disk is full: try the rest, to get the error
                    os.write(self._handle, data[written:])
                    raise OSError(28, "the disk took only part of a record")
            except OSError:
                os.ftruncate(self._handle, size)
                raise
        except OSError as error:
            self.error = error
            return False
        self.pending.clear()
        self.error = None
        return True

    @property
    def size(self) -> int:
        """Bytes in the file, even if its directory was renamed."""
        if self._handle is not None:
            return os.fstat(self._handle).st_size
        return self.path.stat().st_size if self.path.exists() else 0

    def copy_handle(self) -> int | None:
        return None if self._handle is None else os.dup(self._handle)

    def close(self) -> None:
        self.flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class LinesFile(AppendedFile):
    """A log of whole lines. An incomplete last line of an earlier writer is cut off.

    `prepare`: called before writing; adds what is still to be written to `pending`.
    """

    def __init__(self, path: Path, pending: Iterable[bytes] = ()) -> None:
        super().__init__(path, pending)
        self.prepare: Callable[[], None] | None = None
        if path.exists():
            end = _end_of_lines(path)
            if end < path.stat().st_size:
                os.truncate(path, end)

    def flush(self) -> bool:
        if self.prepare is not None:
            self.prepare()
        return super().flush()


class JsonLines(LinesFile):
    """A log of one JSON object per line."""

    def write(self, row: Mapping[str, object]) -> bool:
        return self.append((json.dumps(row) + "\n").encode())


def _end_of_lines(path: Path) -> int:
    """The bytes up to the last line break. Only the end of the file is read."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - BLOCK)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """(end position, bytes) of every whole line from byte `offset` on; an incomplete last line is left out."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is not a plain file")
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        end = file.seek(offset)
        while True:
            line = file.readline(LONGEST_LINE)
            if not line.endswith(b"\n"):
                if len(line) == LONGEST_LINE:
                    raise CheckpointError(f"{path} is damaged: the line at byte {end} has no end")
                return
            end += len(line)
            yield end, line


def line_start(path: Path, offset: int) -> int:
    """`offset` if a line of the log may begin there; otherwise 0: the log was cut back since, so all of it is new."""
    try:
        if offset <= 0 or not stat.S_ISREG(os.stat(path).st_mode):
            return 0
        with open(path, "rb") as file:
            file.seek(offset - 1)
            return offset if file.read(1) == b"\n" else 0
    except OSError:
        return 0


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The object of every whole line."""
    return (row for _, row in read_json_lines_from(path, 0))


def read_json_lines_from(path: Path, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(end position, object) of every whole line from byte `offset` on."""
    after = f" after byte {offset}" if offset else ""
    for number, (end, line) in enumerate(read_lines(path, offset), 1):
        try:
            row = json.loads(line)
        except BROKEN as error:
            raise CheckpointError(f"{path} is damaged in line {number}{after}: {error}") from None
        if not isinstance(row, dict):
            raise CheckpointError(f"{path} is damaged in line {number}{after}: it holds no JSON object")
        yield end, row


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(read_regular(Path(path)).decode())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, too many digits, deep nesting
        raise UsageError(f"{path} is not valid TOML: {error}") from None
