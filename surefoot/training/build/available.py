"""How much memory this process may still take: what the machine has left, within the limits of container and shell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int | None:
    """On a device; None: nobody knows."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    rooms = [room for room in (_machine(), _shell(), *_containers()) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _machine() -> int | None:
    """What could be had without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in (PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _shell() -> int | None:
    """What `ulimit -v` leaves."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int((PROC / "self" / "statm").read_text(encoding="utf-8").split()[0])
            return limit - pages * resource.getpagesize()
    return None


def _containers() -> Iterator[int]:
    """What every control group that we are in leaves, of version 2 or 1."""
    try:
        lines = (PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _rooms(CGROUPS, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _rooms(CGROUPS / "memory", path, names)


def _rooms(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Inside of a container the path may not exist: then the root is our own group."""
    inner = PurePosixPath(path.lstrip("/"))
    for place in (inner, *inner.parents):
        folder = root / place
        with suppress(OSError, ValueError, IndexError):  # "max" where there is no limit
            limit, used = (int((folder / name).read_text(encoding="utf-8")) for name in names[:2])
            cached = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
            yield limit - used + int(cached.get(names[2], 0))
