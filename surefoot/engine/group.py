"""Several processes that learn as one: the only module that knows about them. A single-process run uses `ALONE`.

`torchrun` starts the processes and tells each its rank; `joined` makes a group of them. Every process has an equal part
of the envs, by their index in the whole run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol, TypeVar

from surefoot.errors import PeerError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
LAST_WORDS = "surefoot/last words"  # under which a process that fails tells the others why
TIMEOUT_VARIABLE = "SUREFOOT_RANK_TIMEOUT"  # seconds until a process that does not answer counts as lost
UNNAMED = "none"  # what torchrun calls a launch without --rdzv-id
PATIENCE = 2.0  # seconds to wait for them


class Group(Protocol):
    """The processes of a run, each with its share of the envs."""

    size: int
    index: int  # of this process; the first one writes the run directory

    def sum_(self, numbers: Tensor) -> Tensor:
        """Replace the numbers by their sum over all processes, added in a fixed order."""
        ...

    def max_(self, numbers: Tensor) -> Tensor:
        """Replace each number by the largest of all processes."""
        ...

    def agree(self, value: T) -> T:
        """The first process's value, so that all processes decide alike."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every process's value, in the order of their indices."""
        ...


class Alone:
    """One process: nothing is exchanged."""

    size, index = 1, 0

    def sum_(self, numbers: Tensor) -> Tensor:
        return numbers

    def max_(self, numbers: Tensor) -> Tensor:
        return numbers

    def agree(self, value: T) -> T:
        return value

    def gather(self, value: T) -> list[T]:
        return [value]


ALONE = Alone()


class Processes:
    """The processes that torchrun started, through `torch.distributed`: gloo on CPUs, NCCL on GPUs."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for another process before it counts as lost."""
        import torch.distributed as distributed
        from torch.distributed.rendezvous import rendezvous

        self._distributed, limit = distributed, timedelta(seconds=timeout)
        with self._failures_named():
            store, self.index, self.size = next(rendezvous("env://", timeout=limit))
            # torchrun keeps its store when it restarts the processes, with the addresses of those before.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = distributed.PrefixStore(f"surefoot/{attempt}", store)  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if distributed.is_nccl_available() else "gloo"
            distributed.init_process_group(
                backend, store=self._store, rank=self.index, world_size=self.size, timeout=limit
            )

    def sum_(self, numbers: Tensor) -> Tensor:
        with self._failures_named():
            self._distributed.all_reduce(numbers)
        return numbers

    def max_(self, numbers: Tensor) -> Tensor:
        with self._failures_named():
            self._distributed.all_reduce(numbers, op=self._distributed.ReduceOp.MAX)
        return numbers

    def agree(self, value: T) -> T:
        values = [value]
        with self._failures_named():
            self._distributed.broadcast_object_list(values)
        return values[0]

    def gather(self, value: T) -> list[T]:
        found = [value] * self.size
        with self._failures_named():
            self._distributed.all_gather_object(found, value)
        return found

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises, whatever the backend
            raise PeerError(f"another process of this run is lost{self._why()}") from error

    def _why(self) -> str:
        """What the lost process said last. One that was killed says nothing."""
        end = monotonic() + PATIENCE
        with suppress(RuntimeError, AttributeError):  # the store is lost as well, or was never found
            while not self._store.check([LAST_WORDS]) and monotonic() < end:
                sleep(0.05)  # not `wait`, which would print a warning
            if self._store.check([LAST_WORDS]):
                return f": {self._store.get(LAST_WORDS).decode()}"
        return " without a word: it was killed, or the network fails; its own output and torchrun's tell more"

    def confess(self, error: BaseException) -> None:
        """Tell the others why this process ends."""
        with suppress(RuntimeError):
            self._store.set(LAST_WORDS, f"process {self.index} of {self.size}: {type(error).__name__}: {error}")

    def leave(self) -> None:
        self._distributed.destroy_process_group()


@contextmanager
def joined() -> Iterator[Group]:
    """The group that this process belongs to, if torchrun started it; otherwise `ALONE`."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    group = Processes(_timeout())
    try:
        yield group
    except PeerError:
        raise
    except BaseException as error:
        group.confess(error)
        raise
    finally:
        group.leave()


def _timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"{TIMEOUT_VARIABLE}={text} must be a number of seconds above 0")
    return seconds


def launched_as() -> str | None:
    """What torchrun calls this launch, the same after a restart; None if it did not start this process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{platform.node()}/{os.getppid()}" if name == UNNAMED else name


def restarted() -> bool:
    """Whether torchrun has started this process again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def may_be_requeued() -> bool:
    """Whether the launch has a name that a scheduler gives to the same job again."""
    return os.environ.get("TORCHELASTIC_RUN_ID", UNNAMED) != UNNAMED


def is_first() -> bool:
    """Whether this process speaks for the run: the first of several, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def may_speak(error: BaseException) -> bool:
    """Whether this process should print its error: what all processes find is said by the first one alone."""
    return is_first() or not isinstance(error, (UsageError, PeerError, KeyboardInterrupt))


def check_share(num_envs: int, processes: int) -> None:
    """Every process needs the same number of envs."""
    if num_envs % processes:
        near = max(processes, round(num_envs / processes) * processes)
        raise UsageError(
            f"num_envs={num_envs} cannot be shared equally by {processes} processes; try --num-envs {near}"
        )


def own_envs(group: Group, num_envs: int) -> slice:
    """The envs of this process."""
    check_share(num_envs, group.size)
    each = num_envs // group.size
    return slice(each * group.index, each * (group.index + 1))


def local_device(device: torch.device) -> torch.device:
    """The GPU of this process, if it is to use one: each process of a machine has its own."""
    import torch

    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
