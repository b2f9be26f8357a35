"""Sets PyTorch's modes for our own code, whatever an env, a callback or the user's program has set.

A simulator may disable gradients permanently, enter inference mode, or set the number of threads. Its settings are
restored when our code is done, so they still apply to its own steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from surefoot.engine.torch.threads import held_threads, torch_threads

KINDS = ("cpu", "cuda")  # device types for autocast


@contextmanager
def own_modes(*, gradients: bool) -> Iterator[None]:
    """Gradients on or off, no inference mode, no autocast, and the threads of the innermost `torch_threads`."""
    with ExitStack() as leaving:
        if torch.is_inference_mode_enabled() or any(map(torch.is_autocast_enabled, KINDS)) or _other_threads():
            _settle(leaving)
        with torch.set_grad_enabled(gradients):
            yield


def _other_threads() -> bool:
    return held_threads() not in (None, torch.get_num_threads())


def _settle(leaving: ExitStack) -> None:
    if torch.is_inference_mode_enabled():
        leaving.enter_context(torch.inference_mode(False))
    for kind in filter(torch.is_autocast_enabled, KINDS):
        torch.set_autocast_enabled(kind, False)
        leaving.callback(torch.set_autocast_enabled, kind, True)
    threads = held_threads()
    if threads is not None:
        leaving.enter_context(torch_threads(threads))
