"""Several processes that learn as one, and how they exchange numbers. A single-process run uses `ALONE`.

`torchrun` starts the processes and tells each its rank; `joined` makes a group of them. Every process has an equal part
of the envs, by their index in the whole run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from surefoot.engine.board import SLOW, Board, within
from surefoot.engine.interface import choose_interface
from surefoot.engine.torchrun import is_one_of_several, is_printed, store_prefix
from surefoot.errors import PeerError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ReduceOp, Store  # type: ignore[attr-defined]

    from surefoot.engine.nearby import Nearby
    from surefoot.types import Array

T = TypeVar("T")
TIMEOUT_VARIABLE = "SUREFOOT_RANK_TIMEOUT"  # seconds until a process that does not answer counts as lost


class Group(Protocol):
    """The processes of a run, each with its share of the envs."""

    size: int
    index: int  # this process's place; the first one writes the run directory

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

    def gather_plain(self, value: T) -> list[T]:
        """The same for what JSON can hold (tuples come back as lists): much faster on one machine."""
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

    def gather_plain(self, value: T) -> list[T]:
        return [value]


ALONE = Alone()


class Processes:
    """The processes that torchrun started, through `torch.distributed`: gloo on CPUs, NCCL on GPUs.

    If processes share a GPU, gloo does it all. If all are on one machine, they share memory instead of using gloo.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for another process before it counts as lost."""
        import torch.distributed as distributed

        from surefoot.engine.nearby import find_nearby

        self._distributed, self._timeout = distributed, timeout
        store, self.index, self.size = _met(timeout)
        self.board = Board(store, self.index, self.size)
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        choose_interface(os.environ["MASTER_ADDR"], several_machines=local < self.size)
        backend = "cpu:gloo,cuda:nccl" if distributed.is_nccl_available() else "gloo"
        with self._exchange():
            distributed.init_process_group(
                backend, store=store, rank=self.index, world_size=self.size, timeout=timedelta(seconds=timeout)
            )
        # NCCL refuses two processes on one GPU. Then all exchange the numbers of their GPUs through the host.
        number, each = _gpus_and_sharers()
        self._nearby: Nearby | None = None
        self._by_host = any(self.gather(number > 0 and each > 1))
        if local == self.size:
            with self._exchange():
                self._nearby = find_nearby(self.index, self.size, self.gather, timeout)

    def sum_(self, numbers: Tensor) -> Tensor:
        return self._reduce(
            numbers, self._distributed.ReduceOp.SUM, None if self._nearby is None else self._nearby.sum_
        )

    def max_(self, numbers: Tensor) -> Tensor:
        return self._reduce(
            numbers, self._distributed.ReduceOp.MAX, None if self._nearby is None else self._nearby.max_
        )

    def _reduce(self, numbers: Tensor, how: ReduceOp.RedOpType, in_memory: Callable[[Array], None] | None) -> Tensor:
        """`in_memory`: the same for numbers on the host, if the processes share memory."""
        here = numbers.cpu() if self._by_host else numbers
        if in_memory is None or not here.is_cpu:
            with self._exchange():
                self._distributed.all_reduce(here, op=how)
        else:
            here = here.contiguous()
            shared = here.numpy()
            with self._exchange():
                in_memory(shared)
        return numbers if here is numbers else numbers.copy_(here)

    def agree(self, value: T) -> T:
        values = [value]
        with self._exchange():
            self._distributed.broadcast_object_list(values)
        return values[0]

    def gather(self, value: T) -> list[T]:
        found = [value] * self.size
        with self._exchange():
            self._distributed.all_gather_object(found, value)
        return found

    def gather_plain(self, value: T) -> list[T]:
        if self._nearby is None:
            return self.gather(value)
        with self._exchange():
            found = self._nearby.gather(json.dumps(value).encode())
        return [json.loads(text) for text in found]

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        self.board.arrive()
        begun = monotonic()
        try:
            yield
        except RuntimeError as error:  # what torch.distributed raises, whatever the backend
            raise self.board.lost(monotonic() - begun, self._timeout) from error

    def leave(self) -> None:
        if self._nearby is not None:
            self._nearby.leave()
        self._distributed.destroy_process_group()


def _met(timeout: float) -> tuple[Store, int, int]:
    """(the store of the launch, the rank of this process, the number of processes)."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    where = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))

    def meet() -> tuple[Store, int, int] | ValueError | RuntimeError:
        try:
            store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
            return store, rank, size
        except (ValueError, RuntimeError) as error:
            return error

    # PyTorch waits for ever where another program listens and does not answer.
    found = within(timeout + SLOW, meet)
    if isinstance(found, ValueError):  # a variable is missing or is not a number
        raise UsageError(f"{found}; start the processes with torchrun, or unset RANK and WORLD_SIZE")
    if isinstance(found, RuntimeError) and "EADDRINUSE" in str(found):
        raise UsageError(f"port {where} is in use by another program; set MASTER_PORT to a free one")
    if found is None or isinstance(found, RuntimeError):
        raise PeerError(
            f"no answer from {where}, where the processes of this run are to meet: the first one is not there, another "
            "program uses its port, or a firewall is in the way",
            speaks=os.environ.get("LOCAL_RANK", "0") == "0",
            cut_off=True,
        ) from found
    store, rank, size = found
    return PrefixStore(store_prefix(), store), rank, size


@contextmanager
def joined() -> Iterator[Group]:
    """The group that this process belongs to, if torchrun started it; otherwise `ALONE`."""
    if not is_one_of_several():
        yield ALONE
        return
    group = Processes(_timeout())
    try:
        yield group
    except PeerError:
        raise
    except BaseException as error:
        group.board.confess(error, printed=is_printed(error))
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


def check_share(num_envs: int, processes: int) -> None:
    """Every process needs the same number of envs."""
    if num_envs % processes:
        near = max(processes, round(num_envs / processes) * processes)
        fewer = next(number for number in range(min(num_envs, processes), 0, -1) if num_envs % number == 0)
        raise UsageError(
            f"num_envs={num_envs} cannot be shared equally by {processes} processes; try --num-envs {near}, "
            f"or {fewer} process{'es' * (fewer > 1)}"
        )


def own_envs(group: Group, num_envs: int) -> slice:
    """The envs of this process."""
    check_share(num_envs, group.size)
    each = num_envs // group.size
    return slice(each * group.index, each * (group.index + 1))


def check_equal(group: Group, num_envs: int) -> None:
    """Refuse processes with different numbers of envs, where each brings its own."""
    numbers = group.gather(num_envs)
    if len(set(numbers)) > 1:
        raise UsageError(f"every process needs the same number of envs, but they have {', '.join(map(str, numbers))}")


def local_device(device: torch.device, reason: str) -> tuple[torch.device, str]:
    """(the device of this process, the reason): the processes of a machine share its GPUs."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device, reason
    number, each = _gpus_and_sharers()
    shared = f"{reason}, {each} processes on each" if each > 1 else reason
    return type(device)("cuda", int(os.environ["LOCAL_RANK"]) % number), shared


def _gpus_and_sharers() -> tuple[int, int]:
    """(GPUs of this machine, the most processes that share one)."""
    import torch

    number, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return number, -(-local // max(number, 1))
