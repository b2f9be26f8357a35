"""What the processes of a run tell each other besides numbers, through torchrun's store: who is there, who failed, why.

The store is on one machine. If the network fails it never answers, so every question here has a deadline.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar

from surefoot.errors import PeerError, SurefootError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")
LAST_WORDS = "last words"  # under which a process that fails tells the others why
PATIENCE = 2.0  # seconds in which those that still run report, and one that fails says why
SLOW = 5.0  # seconds after which a store that has not answered counts as lost
INTERVAL = 1.0  # seconds between two signs of life


class Board:
    """Where the processes of a run leave messages for each other."""

    def __init__(self, store: Store, index: int, size: int) -> None:
        self._store, self._index, self._size = store, index, size
        self._count, self._told = 0, -INTERVAL
        store.set(f"who/{index}", f"pid {os.getpid()} on {platform.node()}")

    def arrive(self) -> None:
        """This process takes part in the next exchange. It says so if it has said nothing for a second.

        So a process that kept the others waiting for longer has always told them that it came.
        """
        self._count += 1
        if monotonic() - self._told >= INTERVAL:
            self._told = monotonic()
            with suppress(RuntimeError):  # the exchange itself will fail, too
                self._store.set(f"at/{self._index}", str(self._count))  # which does not wait for an answer

    def confess(self, error: BaseException, *, printed: bool = False) -> None:
        """Tell the others why this process ends, and whether it prints the error itself."""
        words = f"process {self._index} of {self._size}: {type(error).__name__}: {error}"
        code = error.exit_code if isinstance(error, SurefootError) else 1
        told = json.dumps([words, machine() if printed else None, code])
        within(SLOW, lambda: self._store.set(LAST_WORDS, told))

    def lost(self, waited: float, limit: float) -> PeerError:
        """What to raise when an exchange has failed after so many seconds, of `limit` that it may take."""
        late = waited > 0.9 * limit
        found = within(PATIENCE + SLOW, lambda: self._ask(late))
        if found is None:
            where = os.environ.get("MASTER_ADDR", "the first machine")
            why = f"no contact with {where}, where the processes of this run meet: the network or that machine fails"
            return PeerError(why, speaks=os.environ.get("LOCAL_RANK", "0") == "0", cut_off=True)
        told, silent, speaks = found
        if told is not None:
            words, printed_on, code = json.loads(told)
            why, speaks = f"another process of this run is lost: {words}", speaks and printed_on != machine()
            return PeerError(why, speaks=speaks, exit_code=code)
        if late:
            return PeerError(
                f"no answer from {_listed(silent, self._size)} for {limit:g} s: it hangs, was stopped, or the network "
                "fails (SUREFOOT_RANK_TIMEOUT sets how many seconds to wait)",
                speaks=speaks,
            )
        return PeerError(
            f"another process of this run is lost without a word from {_listed(silent, self._size)}: it was killed, or "
            "the network fails; its own output and torchrun's tell more",
            speaks=speaks,
        )

    def _ask(self, late: bool) -> tuple[str | None, dict[int, str], bool]:
        """(the last words of a process that failed, those that say nothing, whether this process may print that)."""
        store, end = self._store, monotonic() + PATIENCE
        store.set(f"here/{self._index}", "")
        while not store.check([LAST_WORDS]) and monotonic() < end:
            sleep(0.05)  # not `wait`, which would print a warning
        told = self._read(LAST_WORDS)
        others = [index for index in range(self._size) if index != self._index]
        silent = [index for index in others if not store.check([f"here/{index}"]) and not (late and self._came(index))]
        speaks = store.add(f"speakers/{machine()}", 1) == 1  # one on each machine
        return told, {index: self._read(f"who/{index}") or "not yet there" for index in silent}, speaks

    def _came(self, index: int) -> bool:
        return int(self._read(f"at/{index}") or "0") >= self._count

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode() if self._store.check([key]) else None


def _listed(silent: dict[int, str], size: int) -> str:
    if not silent:
        return f"one of {size} processes"
    names = [f"{index} of {size} ({who})" for index, who in silent.items()]
    shown = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    return f"process {shown[0]}" if len(names) == 1 else f"one of the processes {', '.join(shown)}"


def within(seconds: float, ask: Callable[[], T]) -> T | None:
    """The answer of a store; None if it does not come in time. A thread that waits for it in vain is left behind."""
    answers: list[T] = []

    def note() -> None:
        with suppress(RuntimeError):  # the store is lost
            answers.append(ask())

    asking = Thread(target=note, name="surefoot-store", daemon=True)
    asking.start()
    asking.join(seconds)
    return answers[0] if answers else None


def machine() -> str:
    """The machine of this process, among those of the launch."""
    return os.environ.get("GROUP_RANK", "0")


def key_of(text: str) -> str:
    """A key for a text of any length."""
    return f"said/{blake2b(text.encode(), digest_size=16).hexdigest()}"
