"""Detects too little memory or too few threads before NumPy and PyTorch load, which could crash otherwise."""

from __future__ import annotations

import errno
import os
from importlib.util import find_spec
from pathlib import Path

from surefoot.errors import SurefootError
from surefoot.limits import allowed_cores, startable

MIB = 2**20
BESIDE = 400 * MIB  # address space that Python, NumPy and PyTorch need besides PyTorch's libraries
SMALLER = "try fewer envs (--num-envs), a shorter rollout (--rollout-length) or a smaller network (--hidden-sizes)"


def make_do_with_few_threads() -> None:
    """NumPy's OpenBLAS starts a thread per core, and interrupts the process if it cannot."""
    cores = allowed_cores()
    possible = startable(cores)
    if possible < cores:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(possible))


def require_room_for_torch() -> None:
    """Raises an error if `ulimit -v` leaves too little address space for PyTorch, whose import might crash."""
    limit, needed = _address_space(), BESIDE + _size_of_libraries()
    if limit is not None and limit < needed:
        raise SurefootError(
            f"the address space is limited to {limit // MIB:,} MiB (ulimit -v), but PyTorch alone needs about "
            f"{needed // MIB:,} MiB; raise the limit"
        )


def advice() -> str:
    """What to do about memory that has run out."""
    return SMALLER if _address_space() is None else f"raise the limit (ulimit -v), or {SMALLER}"


def is_out_of_memory(error: BaseException) -> bool:
    """Python, NumPy and the kernels raise MemoryError, the system an OSError, PyTorch a RuntimeError."""
    if isinstance(error, RuntimeError):
        return any(words in str(error) for words in ("can't allocate memory", "out of memory", "bad_alloc"))
    if isinstance(error, ImportError):  # a library that no longer fits into the address space
        return any(words in str(error) for words in ("failed to map", "annot allocate memory"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def _address_space() -> int | None:
    """Bytes that this process may map; None: unlimited."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _size_of_libraries() -> int:
    found = find_spec("torch")
    folders = found.submodule_search_locations if found is not None else None
    return sum(file.stat().st_size for folder in folders or () for file in Path(folder, "lib").glob("*.so*"))
