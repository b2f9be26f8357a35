"""The standard streams of a command, whatever it was started with: closed, full, or without a reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from surefoot.training.reports.streams import Outlet


@contextmanager
def standing_streams() -> Iterator[Outlet]:
    """stdin, stdout and stderr exist and do not raise. Gives stdout, whose `error` says if something was lost."""
    _open_descriptors()
    before = sys.stdin, sys.stdout, sys.stderr
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    out, err = (Outlet(open(os.devnull, "w", encoding="utf-8") if stream is None else stream) for stream in before[1:])  # noqa: SIM115
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in (out, err):
            stream.flush()
            if stream.error is not None:
                _silence(stream)


def _open_descriptors() -> None:
    """A closed one would be the number of the next file that is opened, and get what C code writes to stderr."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)


def _silence(stream: Outlet) -> None:
    """What is left in its buffer goes nowhere; else the interpreter would try again at its end, and say so."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
