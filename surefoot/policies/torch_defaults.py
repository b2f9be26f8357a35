"""PyTorch's process-wide state, which several runs in threads of one process share.

Our own code always names device, dtype and generator. A user's encoder should not have to, so it gets PyTorch's usual
defaults, whatever a simulator in the same process has set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch


class Shared:
    """A process-wide change that several threads may need at once: the first makes it, the last undoes it."""

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        """`make` makes the change and returns a function that undoes it."""
        self._make, self._lock, self._holders = make, threading.Lock(), 0
        self._undo: Callable[[], None] = lambda: None

    @property
    def active(self) -> bool:
        return self._holders > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._holders:
                self._undo = self._make()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._undo()


def _float32() -> Callable[[], None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return lambda: torch.set_default_dtype(before)


_single = Shared(_float32)
_global_generator = threading.RLock()


@contextmanager
def usual_defaults(device: torch.device) -> Iterator[None]:
    """New tensors are float32 and on `device` by default."""
    other_device = torch.get_default_device() != device
    other_dtype = _single.active or torch.get_default_dtype() is not torch.float32
    with device if other_device else nullcontext(), _single.held() if other_dtype else nullcontext():
        yield


@contextmanager
def no_global_draws() -> Iterator[None]:
    """Restore PyTorch's global CPU generator afterwards. One thread at a time."""
    with _global_generator, torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def global_draws(generator: torch.Generator | None) -> Iterator[None]:
    """Inside, PyTorch's global CPU generator continues `generator`, which advances with it. One thread at a time.

    None: the global generator as it is.
    """
    if generator is None:
        yield
        return
    with no_global_draws():
        torch.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.get_rng_state())
