"""Sets PyTorch's modes for our own code, whatever an env, a callback or the user's program has set.

A simulator may disable gradients permanently, enter inference mode, or set the number of threads. Its settings are
restored when our code is done, so they still apply to its own steps.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch

from surefoot.engine.openmp import can_share
from surefoot.engine.torch_threads import held_threads, torch_threads

KINDS = ("cpu", "cuda")  # device types for autocast


class own_modes:
    """Gradients on or off, no inference mode, no autocast, and the threads of the innermost `torch_threads`.

    Outside of any, the user's number of threads; in a forked process in which several would hang, one.

    A class, because six of these surround every update: a generator and an `ExitStack` would take half as long again.
    """

    def __init__(self, *, gradients: bool) -> None:
        self._gradients = gradients
        self._leaving: ExitStack | None = None

    def __enter__(self) -> None:
        if torch.is_inference_mode_enabled() or any(map(torch.is_autocast_enabled, KINDS)) or _other_threads():
            self._leaving = ExitStack()
            _settle(self._leaving)
        self._before = torch.is_grad_enabled()
        torch.set_grad_enabled(self._gradients)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._before)
        if self._leaving is not None:
            self._leaving.close()


def _wanted_threads() -> int | None:
    """None: as many as the user's program has set."""
    return held_threads() if can_share() else 1


def _other_threads() -> bool:
    return _wanted_threads() not in (None, torch.get_num_threads())


def _settle(leaving: ExitStack) -> None:
    if torch.is_inference_mode_enabled():
        leaving.enter_context(torch.inference_mode(False))
    for kind in filter(torch.is_autocast_enabled, KINDS):
        torch.set_autocast_enabled(kind, False)
        leaving.callback(torch.set_autocast_enabled, kind, True)
    threads = _wanted_threads()
    if threads is not None:
        leaving.enter_context(torch_threads(threads))
