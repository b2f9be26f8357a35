"""Ends copies of our process that user code forked (`os.fork`) and let return: they must not continue the run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_forks = 0  # how many forks separate this process from the first one


def _count() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


class Original:
    """Remembers the process it was created in, and ends forked copies that return to our code.

    Use `with Original(): …` around user code, or call `end_copies` after it.
    """

    def __init__(self) -> None:
        self.pid, self._forks = os.getpid(), _forks

    def end_copies(self, error: BaseException | None = None) -> None:
        """Does nothing in the original process. Ends a copy at once, without running any of our cleanup.

        `error`: the exception that the copy raised. A child that calls `sys.exit()` ends with that code.
        """
        if self._forks != _forks:
            self._end(error)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.end_copies(error)

    def _end(self, error: BaseException | None) -> None:
        asked = error.__cause__ if error is not None and error.__cause__ is not None else error
        if isinstance(asked, SystemExit):
            os._exit(asked.code if isinstance(asked.code, int) else int(asked.code is not None))
        said = (
            f"surefoot: process {os.getpid()} is a fork of process {self.pid}, made by an env or a callback. It ends "
            "here, the original continues. End a forked child with os._exit().\n"
        )
        if sys.__stderr__ is not None:
            with suppress(OSError, ValueError):
                os.write(sys.__stderr__.fileno(), said.encode())
        os._exit(1)
