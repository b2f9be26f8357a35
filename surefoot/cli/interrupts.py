"""Ctrl-C while a large library is imported. An exception in there may come out as any other error, or as none."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = ("torch", "numpy", "gymnasium", "mujoco")


@contextmanager
def interrupted_imports() -> Iterator[None]:
    """Ends the process at once if Ctrl-C comes during such an import; at other times it raises, as usual."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave_or_raise)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _leave_or_raise:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_or_raise(number: int, frame: object) -> None:
    if any(is_importing(name) for name in LARGE):
        os.write(2, b"surefoot: interrupted\n")
        os._exit(130)
    raise KeyboardInterrupt


def is_importing(name: str) -> bool:
    """Whether this module is being imported now."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
