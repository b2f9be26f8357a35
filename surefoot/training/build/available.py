"""How much memory this process may still use, given the machine, container limits and `ulimit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    rooms = [room for room in (_machine(), _shell(), *_containers()) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _machine() -> int | None:
    """Memory available without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in (PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _shell() -> int | None:
    """What `ulimit -v` still allows."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int((PROC / "self" / "statm").read_text(encoding="utf-8").split()[0])
            return limit - pages * resource.getpagesize()
    return None


def _containers() -> Iterator[int]:
    """What each of our control groups (cgroup v2 or v1) still allows."""
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
    """Inside a container the path may not exist; the root is then our own group."""
    inner = PurePosixPath(path.lstrip("/"))
    for place in (inner, *inner.parents):
        folder = root / place
        with suppress(OSError, ValueError, IndexError):  # "max" means no limit
            limit, used = (int((folder / name).read_text(encoding="utf-8")) for name in names[:2])
            cached = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
            yield limit - used + int(cached.get(names[2], 0))
