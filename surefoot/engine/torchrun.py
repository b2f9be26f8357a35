"""What torchrun says to the processes that it starts, in their environment, and how they deal with it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import timedelta

from surefoot.engine.board import SLOW, key_of, machine, within
from surefoot.errors import CodeError, PeerError, SurefootError, UsageError

LAUNCHER, GRACE = "pt_elastic", 5  # how torchrun names its process; seconds in which it may end by itself
UNNAMED = "none"  # what torchrun calls a launch without --rdzv-id


def is_one_of_several() -> bool:
    """Whether this process was started as one of several that form a run."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


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
    """Whether this process should print its error: what several find is said by the first of them alone."""
    if not is_one_of_several():
        return True
    if isinstance(error, PeerError):
        return error.speaks
    if _is_compared(error):
        import torch.distributed  # noqa: F401  (it may take longer than the store may)

        # Envs of several processes may raise at the same step. One of these errors is enough on each machine.
        text = f"code on machine {machine()}" if isinstance(error, CodeError) else str(error)
        is_new = within(SLOW, lambda: _is_new(text))
        return is_first() if is_new is None else is_new
    return is_printed(error)


def is_printed(error: BaseException) -> bool:
    """Whether this process prints its error, unless another one has printed it."""
    return _is_compared(error) or is_first() or not isinstance(error, (UsageError, KeyboardInterrupt))


def _is_compared(error: BaseException) -> bool:
    """Whether the processes ask torchrun's store if another one has said the same."""
    return isinstance(error, SurefootError) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _is_new(text: str) -> bool:
    """Whether no other process has said this. The store is torchrun's, so it is there before and after the group."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=SLOW), wait_for_workers=False)
    said: int = PrefixStore(store_prefix(), store).add(key_of(text), 1)
    return said == 1


def dismiss_launcher() -> None:
    """End torchrun in a few seconds if it does not end by itself, after its last restart.

    Its connection to a lost machine has no timeout of its own. Until the system gives up, after a quarter of an hour,
    it sees neither that this process has ended nor a signal.
    """
    if launched_as() is not None and not restarts_left() and os.path.exists("/proc"):
        script = f'sleep {GRACE}; [ "$(cat /proc/$0/comm)" = {LAUNCHER} ] && kill -9 $0'
        silent = subprocess.DEVNULL
        subprocess.Popen(
            ["sh", "-c", script, str(os.getppid())], stdin=silent, stdout=silent, stderr=silent, start_new_session=True
        )


def restarts_left() -> bool:
    """Whether torchrun will start the processes again if they fail."""
    allowed, used = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return allowed != used


def store_prefix() -> str:
    """torchrun keeps its store when it restarts the processes, with the addresses of those before."""
    return f"surefoot/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def quieten_torch() -> None:
    """Keep warnings of PyTorch's C++ code about sockets and host names off the screen. To be called before its import.

    Its errors are still printed, and TORCH_CPP_LOG_LEVEL=INFO shows everything.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
