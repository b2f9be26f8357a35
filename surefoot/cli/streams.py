"""Makes the standard streams of a command usable even if they are closed, full, or have no reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from surefoot.training.reports.streams import Outlet


@contextmanager
def standing_streams() -> Iterator[Outlet]:
    """Provides stdin, stdout and stderr that never raise. Yields stdout; its `error` is set if output is lost."""
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
    """Otherwise the next opened file would reuse a closed descriptor and receive what C code writes to stderr."""
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
    """Discards its buffer; otherwise the interpreter would try to flush it at exit, and report an error."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
