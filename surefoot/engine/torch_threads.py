"""Sets PyTorch's number of threads for our own code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from surefoot.engine.openmp import require_threads
from surefoot.policies.torch_defaults import Shared

_here = threading.local()  # PyTorch keeps a separate number for each of our threads


def _remember() -> Callable[[], None]:
    # A new thread starts with the number that was set last anywhere, perhaps by another of our threads.
    return partial(torch.set_num_threads, torch.get_num_threads())


_before_all = Shared(_remember)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Use this many PyTorch threads inside. Small networks are fastest with one, especially on a busy machine."""
    require_threads(number)
    with _before_all.held():
        before, outer = torch.get_num_threads(), held_threads()
        torch.set_num_threads(number)
        _here.number = number
        try:
            yield
        finally:
            torch.set_num_threads(before)
            _here.number = outer


def held_threads() -> int | None:
    """The number set by the innermost `torch_threads`, even if an env has changed it since. None outside of any."""
    return getattr(_here, "number", None)
