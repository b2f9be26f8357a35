"""CUDA graphs: work on tensors that stay where they are is recorded once and then started by a single call.

A small network's step is some seventy kernels of two microseconds each, but PyTorch needs five to start one. A graph
starts them all. It can hold no decision: whatever reads a tensor on the host cannot be recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

Work: TypeAlias = Callable[[], None]


class Recorder:
    """Records work as graphs on one device; elsewhere, or where that fails, the work runs as it is."""

    def __init__(self) -> None:
        self.enabled = True
        self.busy = False  # some work is being tried or recorded, with everything inside it
        self.notices: list[str] = []  # what could not be recorded, and why
        self._failed: set[str] = set()
        self._pool: Any = None  # PyTorch's handle of memory that all graphs share; they run one after the other

    def record(
        self,
        what: str,
        work: Work,
        device: torch.device,
        changed: Sequence[Tensor],
        generators: Sequence[torch.Generator] = (),
    ) -> Work:
        """The recorded work, or the work itself. `changed`: all that it changes, which is restored afterwards.

        It must not return tensors or keep any: the next graph uses the same memory. `generators`: those that it draws
        from, besides the device's own.
        """
        if device.type != "cuda" or not self.enabled or what in self._failed:
            return work
        with torch.cuda.device(device), self._at_work(), _restored(changed, device, generators):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            try:
                with _beside(side):
                    work()  # constants and workspaces are made here, and errors of the work itself are raised
                with _beside(side), _no_waiting():
                    work()
                graph = torch.cuda.CUDAGraph()
                for generator in generators:  # each replay continues its sequence
                    graph.register_generator_state(generator)
                with _beside(side), torch.cuda.graph(graph, pool=self._pool, stream=side):
                    work()
            except RuntimeError as error:
                if isinstance(error, torch.cuda.OutOfMemoryError) or not _forbidden(error):
                    raise
                torch.cuda.synchronize()
                self.refuse(what, _first(error), device)
                return work
            self._pool = self._pool or graph.pool()
        return graph.replay

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def failed(self, what: str) -> bool:
        return what in self._failed

    def refuse(self, what: str, reason: str, device: torch.device) -> None:
        """Say once that this work is not recorded, if it would be."""
        if device.type == "cuda" and what not in self._failed:
            self._failed.add(what)
            self.notices.append(f"{what} is not recorded as a CUDA graph, which would be faster: {reason}")

    def take_notices(self) -> list[str]:
        notices, self.notices = self.notices, []
        return notices


@contextmanager
def _beside(side: torch.cuda.Stream) -> Iterator[None]:
    """On a stream of its own, after what was asked for before and before what comes next."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises an error. A recording that fails is harder to recover from."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _restored(changed: Sequence[Tensor], device: torch.device, generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Tensors and generators are as before, as if the work had not been tried."""
    before = [tensor.clone() for tensor in changed]
    draws, own = torch.cuda.get_rng_state(device), [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        torch.cuda.set_rng_state(draws, device)
        for generator, state in zip(generators, own, strict=True):
            generator.set_state(state)
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)


def _forbidden(error: RuntimeError) -> bool:
    """Whether the work did something that a graph cannot hold, rather than being wrong."""
    message = str(error).lower()
    return any(word in message for word in ("synchroniz", "capture", "capturing", "graph"))


def _first(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]
