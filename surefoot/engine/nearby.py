"""Exchanges between processes of one machine, through memory that they share.

An update has hundreds of small sums. Through the sockets of gloo each takes about a millisecond, because processes have
to be woken up for every message; here it takes microseconds. If any process cannot take part, gloo serves them all.
"""

from __future__ import annotations

import mmap
import os
import select
import tempfile
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from surefoot.errors import UsageError
from surefoot.kernels.library import NotBuilt, load
from surefoot.kernels.meeting import ALL_HERE, NOT_YET, PLACE, Meeting

if TYPE_CHECKING:
    from surefoot.types import Array

T = TypeVar("T")
FOLDER = "/dev/shm"  # files there are memory
SLOT = 2**18  # bytes that a process shares at once
SPIN = 5e-4  # seconds
SLICE = 0.05  # seconds after which a waiting process looks whether the others are still alive


class Gather(Protocol):
    def __call__(self, value: T) -> list[T]:
        """Every process's value."""
        ...


class Nearby:
    """Sums and messages of all processes of a run, if all of them are on this machine.

    In each round, every process writes into its slot, comes to the meeting, and reads all slots. Each has two slots,
    used in turn, and that is enough: who comes to a round has read the slots of the round before.
    """

    def __init__(self, memory: mmap.mmap, index: int, pids: list[int], timeout: float) -> None:
        """`pids`: of all processes. `timeout`: seconds to wait for one that is alive."""
        self.index, self.size, self._timeout = index, len(pids), timeout
        whole, header = np.frombuffer(memory, np.uint8), 8 * PLACE * self.size
        self._slots = whole[header:].reshape(2, self.size, SLOT)
        spin = SPIN if self.size <= len(os.sched_getaffinity(0)) else 0.0  # whoever spins keeps another from coming
        self._meeting = Meeting(whole[:header].view(np.int64).reshape(self.size, PLACE), index, spin)
        self._round = 0
        self._lives, self._handles = select.poll(), list[int]()
        for pid in pids[:index] + pids[index + 1 :]:
            self._handles.append(_watched(pid))
            self._lives.register(self._handles[-1], select.POLLIN)

    def sum_(self, numbers: Array) -> None:
        """Replace the numbers (contiguous) by their sum over all processes, added in the order of the processes.

        RuntimeError, as in `torch.distributed`, if another process does not come.
        """
        self._reduce(numbers, np.add)

    def max_(self, numbers: Array) -> None:
        """Replace each number by the largest of all processes."""
        self._reduce(numbers, np.maximum)

    def _reduce(self, numbers: Array, how: np.ufunc) -> None:
        flat, most = numbers.reshape(-1), SLOT // numbers.itemsize
        for begin in range(0, len(flat), most):
            part = flat[begin : begin + most]
            first, second, *others = self._exchanged(part)
            how(first, second, out=part)
            for other in others:
                how(part, other, out=part)

    def gather(self, message: bytes) -> list[bytes]:
        """Every process's message, in the order of their indices."""
        own = np.frombuffer(message, np.uint8)
        sizes: list[int] = self._exchanged(np.array([len(own)], np.int64))[:, 0].tolist()
        parts: list[list[bytes]] = [[] for _ in sizes]
        for begin in range(0, max(sizes), SLOT):
            part = np.zeros(min(SLOT, max(sizes) - begin), np.uint8)
            mine = own[begin : begin + SLOT]
            part[: len(mine)] = mine
            for found, row in zip(parts, self._exchanged(part), strict=True):
                found.append(row.tobytes())
        return [b"".join(found)[:size] for found, size in zip(parts, sizes, strict=True)]

    def _exchanged(self, part: Array) -> Array:
        """`[processes, …]`: the part of each. It stays valid until the next call but one."""
        self._round += 1
        rows: Array = self._slots[self._round % 2, :, : part.nbytes].view(part.dtype)
        rows[self.index] = part
        begun = monotonic()
        while (met := self._meeting.meet(self._round, SLICE)) != ALL_HERE:
            if met != NOT_YET:
                raise RuntimeError(f"process {met} has left")
            if self._lives.poll(0) and self._meeting.meet(self._round, 0.0) != ALL_HERE:  # else it came, then ended
                raise RuntimeError("a process has ended")
            if monotonic() - begun > self._timeout:
                raise RuntimeError("a process does not answer")
        return rows

    def leave(self) -> None:
        self._meeting.go()
        for handle in self._handles:
            os.close(handle)


def find_nearby(index: int, size: int, gather: Gather, timeout: float) -> Nearby | None:
    """The memory that all processes share; None if they have none. `gather`: another way to exchange messages."""
    created = _create(size) if index == 0 else None
    try:
        path, memory = gather(created)[0], None
        with suppress(OSError):  # on another machine, or in another container
            memory = None if path is None else _opened(path, size)
        found = gather(None if memory is None else _whoami())
    finally:
        if created is not None:
            os.unlink(created)  # the memory stays until the last process has ended, however that ends
    known = [one for one in found if one is not None]
    if memory is None or len(known) < size or len({namespace for namespace, _ in known}) > 1:
        return None
    return Nearby(memory, index, [pid for _, pid in known], timeout)


def _create(size: int) -> str | None:
    """A new file of memory for this many processes, all zeros; None if this machine has no such memory left."""
    try:
        handle, path = tempfile.mkstemp(prefix="surefoot-", dir=FOLDER)
    except OSError:
        return None
    try:
        os.posix_fallocate(handle, 0, _bytes(size))  # without it, a write would end the process when memory is full
    except OSError:
        os.unlink(path)
        return None
    finally:
        os.close(handle)
    return path


def _opened(path: str, size: int) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), _bytes(size))


def _bytes(size: int) -> int:
    return size * (8 * PLACE + 2 * SLOT)


def _whoami() -> tuple[str, int] | None:
    """(where the number of this process counts, the number); None if it cannot meet others or see them end."""
    try:
        load("nn")
        os.close(os.pidfd_open(os.getpid()))
        return os.readlink("/proc/self/ns/pid"), os.getpid()
    except (OSError, AttributeError, NotBuilt, UsageError):
        return None


def _watched(pid: int) -> int:
    """A handle that can be read once the process has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise RuntimeError("a process has ended") from None
