"""A training loop that pauses, so that several runs of one process can take turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from surefoot.engine.precision import held_precision
from surefoot.engine.torch_threads import torch_threads

if TYPE_CHECKING:
    from surefoot.engine.names import Precision


@contextmanager
def held(threads: int, precision: Precision) -> Iterator[None]:
    """PyTorch's threads and precision."""
    with torch_threads(threads), held_precision(precision):
        yield


def with_pauses(loop: Generator[None], settings: Callable[[], AbstractContextManager[None]]) -> Generator[None]:
    """The loop with these settings, which do not apply while it pauses."""
    while True:
        with settings():
            try:
                next(loop)
            except StopIteration:
                return
        try:
            yield
        except BaseException as error:  # thrown in by whoever interrupts all runs
            with settings():
                loop.throw(error)
            raise
