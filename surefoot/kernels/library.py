"""Which compiled kernels are here, and the one for this processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from functools import cache
from pathlib import Path

# Instruction sets, best first, and what a processor must say of itself to run them.
VARIANTS = {
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"},
    "v2": {"sse4_2", "popcnt", "ssse3"},
    "base": set[str](),
}  # SUREFOOT_KERNELS=v2 forces one: their results differ in the last bits


class NotBuilt(Exception):
    """There is no library for this processor; the message says why."""


@cache
def load(name: str) -> ctypes.CDLL:
    """The library of this name: its variant for this processor, or the only one there is."""
    file = find(name)
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NotBuilt(f"{file.name} cannot be loaded: {error}") from None
    _require_same_sources(library)
    return library


def _require_same_sources(library: ctypes.CDLL) -> None:
    """In a checkout the sources may have moved on since they were built; a wheel has none to compare with."""
    folder = Path(__file__).parent / "src"
    files = sorted([*folder.glob("*.hpp"), *folder.glob("*.cpp")])
    if not files:
        return
    library.surefoot_sources.restype = ctypes.c_char_p
    built = library.surefoot_sources().decode() if hasattr(library, "surefoot_sources") else "older ones"
    here = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    if built and built != here:
        raise NotBuilt("the native kernels were built from other sources than these: pip install -e . builds them anew")


def find(name: str) -> Path:
    folder = Path(__file__).parent
    able, forced = features(), os.environ.get("SUREFOOT_KERNELS")
    for variant, needed in VARIANTS.items():
        if forced in (None, variant) and needed <= able and (found := sorted(folder.glob(f"_{name}_{variant}.*"))):
            return found[0]
    if found := sorted(folder.glob(f"_{name}.*")):
        return found[0]
    if any(folder.glob(f"_{name}_*")):
        raise NotBuilt(f"the native kernels were built for other processors than this {platform.machine()}")
    raise NotBuilt("the native kernels were not built: pip found no C++ compiler (install g++ and reinstall surefoot)")


@cache
def features() -> frozenset[str]:
    """What this processor can do, as Linux names it. Nothing where that is not known: then the base variant serves."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return frozenset(flags)
