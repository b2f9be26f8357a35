"""Writes TensorBoard's event files ourselves: no thread that can die, no queue that can block, no dependency.

A file is a sequence of records, `length · crc(length) · data · crc(data)`. The data are protocol buffers of the four
messages that scalars need (`Event`, `Summary`, its `Value`, `SessionLog`), encoded by hand.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path

from surefoot.runs.files import AppendedFile


class EventFile(AppendedFile):
    """A new event file in `folder`. `purge_step`: TensorBoard drops earlier files' data from this step on."""

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        with suppress(OSError):  # full disk: the first record will report it
            folder.mkdir(parents=True, exist_ok=True)
        now, where = time.time(), f"{socket.gethostname()}.{os.getpid()}"
        names = (folder / f"events.out.tfevents.{int(now):010d}.{where}.{number}" for number in count())
        super().__init__(next(name for name in names if not name.exists()))
        self.append(_record(_event(now) + _text(3, "brain.Event:2")))
        if purge_step is not None:
            start = _message(7, _varint(1, 1))  # SessionLog(status=START): TensorBoard drops later steps
            self.append(_record(_event(now, purge_step) + start))

    def write(self, step: int, scalars: Mapping[str, float]) -> bool:
        values = b"".join([_head(tag) + _float32(x) for tag, x in scalars.items()])
        return self.append(_record(_event(time.time(), step) + _message(5, values)))


@lru_cache(maxsize=1024)
def _head(tag: str) -> bytes:
    """The message of a scalar up to its number, which has four bytes."""
    return _message(1, _text(1, tag) + b"\x15" + bytes(4))[:-4]


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _event(wall_time: float, step: int = 0) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + _varint(2, step)


def _varint(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _number(value)


def _number(value: int) -> bytes:
    """A varint: seven bits per byte, lowest first; the eighth bit says that more follow."""
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _float32(x: float) -> bytes:
    """TensorBoard has single precision; a number beyond it, such as a huge loss, is infinite there."""
    try:
        return struct.pack("<f", x)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, x))


def _message(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _number(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _crc_table() -> list[int]:
    """CRC-32C (Castagnoli), reflected."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
