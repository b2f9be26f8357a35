"""Single columns of a log of rows (`metrics.jsonl`, `timings.jsonl`), without decoding the other values.

A metrics file may have a million rows of forty numbers. Our own rows are flat and written by `json.dumps`, so the
values of one name can be found as text, tens of times faster than by decoding every row. Lines that look different are
decoded one by one, and a damaged one counts as a row without values.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import nan
from pathlib import Path

from surefoot.runs.files import BROKEN, LONGEST_LINE

CHUNK = 2**24  # bytes that are searched at once: whole files of a gigabyte need not fit into memory
PROBE = 2**14  # bytes that are read to find one line


class LogFile:
    """An open log; positions are bytes. `size` ends with the last whole line."""

    def __init__(self, handle: int) -> None:
        status = os.fstat(handle)
        self._handle, self.inode = handle, (status.st_dev, status.st_ino)
        self.size = self._whole(status.st_size)

    def _whole(self, size: int) -> int:
        end = size
        while end > 0 and size - end <= LONGEST_LINE:  # longer than any row: no line at all
            start = max(0, end - PROBE)
            found = self._read(start, end).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def _read(self, start: int, stop: int) -> bytes:
        os.lseek(self._handle, start, os.SEEK_SET)  # Windows has no pread
        return os.read(self._handle, max(0, stop - start))

    def begins_line(self, position: int) -> bool:
        """Whether a line begins there: if not, the log was cut back since the position was noted."""
        return position == 0 or (position <= self.size and self._read(position - 1, position) == b"\n")

    def line_at(self, position: int) -> tuple[int, bytes] | None:
        """(where it begins, the line) of the first line that begins at `position` or later; None after the last."""
        start = position
        if not self.begins_line(position):
            before, start = self._until_break(position)
            if not before:
                return None
        if start >= self.size:
            return None
        line, _ = self._until_break(start)
        return start, line

    def _until_break(self, position: int) -> tuple[bytes, int]:
        """(the bytes up to the next line break, where the line after it begins)."""
        pieces: list[bytes] = []
        while position < self.size:
            piece = self._read(position, min(self.size, position + PROBE))
            if not piece:  # cut back meanwhile
                break
            end = piece.find(b"\n") + 1
            pieces.append(piece[:end] if end else piece)
            position += len(pieces[-1])
            if end:
                return b"".join(pieces), position
        return b"", self.size

    def chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """All lines that begin from `start` up to `stop`, in pieces; both are beginnings of lines."""
        while start < stop:
            piece = self._read(start, min(stop, start + CHUNK))
            if start + len(piece) < stop:
                piece = piece[: piece.rfind(b"\n") + 1]
            if not piece:  # one line longer than a chunk, or a file that was cut back meanwhile
                return
            yield piece
            start += len(piece)

    def sample(self, start: int, stop: int, places: int) -> bytes:
        """A few whole lines at each of `places` evenly spaced places, and the last line. Both ends begin a line."""
        first = self.line_at(start)
        if first is None or start >= stop:
            return b""
        width = min(PROBE, 3 * len(first[1]))
        found = [first[1]]
        for place in range(1, places):
            piece = self._read(position := start + (stop - start) * place // places, min(stop, position + width))
            found.append(piece[piece.find(b"\n") + 1 : piece.rfind(b"\n") + 1])
        tail = self._read(max(start, stop - width), stop)
        found.append(tail[tail.rfind(b"\n", 0, -1) + 1 :])
        return b"".join(found)

    def find(self, name: str, value: float) -> int:
        """Where the first line begins whose `name`, which never falls from row to row, is at least `value`."""
        low, high = 0, self.size
        while low < high:
            middle = (low + high) // 2
            found = self.line_at(middle)
            (there,) = columns_of(found[1], [name])[name] if found else (nan,)
            if found is None or there >= value:
                high = middle
            else:  # a row that lacks it counts as an early one
                low = found[0] + len(found[1])
        found = self.line_at(low)
        return self.size if found is None else found[0]


@contextmanager
def open_log(path: Path) -> Iterator[LogFile | None]:
    """The log, or None where there is none. No link is followed, and no pipe is waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError:
        yield None
        return
    try:
        yield LogFile(handle) if stat.S_ISREG(os.fstat(handle).st_mode) else None
    finally:
        os.close(handle)


def columns_of(lines: bytes, names: Sequence[str]) -> dict[str, list[float]]:
    """The values of `names` in every line; NaN where a row lacks one or has null."""
    rows = lines.count(b"\n")
    found = _by_text(lines, names)
    whole = {name: _aligned(values, rows) for name, values in found.items()}
    sure = {name: values for name, values in whole.items() if values is not None}
    if len(sure) < len(names):
        sure |= _by_row(lines, [name for name in names if name not in sure])
    return {name: sure[name] for name in names}


def _aligned(values: list[float | None], rows: int) -> list[float] | None:
    """One value per row; None where some rows lack it, and only the rows themselves tell which."""
    if len(values) == rows:
        return [nan if value is None else value for value in values]
    return None if values else [nan] * rows


@lru_cache(256)
def _pattern(name: str) -> re.Pattern[bytes]:
    return re.compile(re.escape(json.dumps(name).encode()) + rb": ([^,}\n]*)")


def numbers_of(lines: bytes, names: Sequence[str]) -> dict[str, list[float]] | None:
    """All numbers under each name, in order; None if the text alone is not enough to find them."""
    found = _by_text(lines, names)
    if len(found) < len(names):
        return None
    return {name: [number for number in values if number is not None] for name, values in found.items()}


def is_regular(lines: bytes) -> bool:
    """Whether every line looks like a flat object of ours; if not, it is damaged, or another program wrote it."""
    rows = lines.count(b"\n")
    return b"\\" not in lines and lines.count(b"{") == rows == lines.count(b"}\n")


def _by_text(lines: bytes, names: Sequence[str]) -> dict[str, list[float | None]]:
    """What is written under each name: numbers, or None for null. Without the names whose text is not clear."""
    if not is_regular(lines):
        return {}
    found: dict[str, list[float | None]] = {}
    for name in names:
        with suppress(ValueError):
            found[name] = [None if text == b"null" else float(text) for text in _pattern(name).findall(lines)]
    return found


def _by_row(lines: bytes, names: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in names}
    keys = {name: json.dumps(name).encode() for name in names}
    for line in _split(lines):
        row = _decoded(line) if any(key in line for key in keys.values()) else {}
        for name, values in found.items():
            value = row.get(name)
            values.append(_number(value))
    return found


def _split(lines: bytes) -> list[bytes]:
    """Not `splitlines`, which also splits at carriage returns: JSON allows them inside a row."""
    return lines.removesuffix(b"\n").split(b"\n") if lines else []


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else nan
    except OverflowError:  # an integer of hundreds of digits
        return nan


def _decoded(line: bytes) -> dict[str, object]:
    try:
        row = json.loads(line)
    except BROKEN:
        return {}
    return row if isinstance(row, dict) else {}


def names_in(lines: bytes) -> list[str]:
    """Every name that has a number in one of the lines, in the order of appearance."""
    found: dict[str, None] = {}
    for line in _split(lines):
        found |= {name: None for name, value in _decoded(line).items() if isinstance(value, (int, float))}
    return list(found)
