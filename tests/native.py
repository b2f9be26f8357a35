"""The native envs' library for tests: the one that was built, or another compiled with other flags."""

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import surefoot
from surefoot.kernels import classic
from surefoot.kernels.calls import Library

SOURCE = Path(surefoot.__file__).parent / "kernels" / "src" / "classic.cpp"
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-fast-math", "-fPIC", "-shared")


@cache
def classic_library(*flags: str) -> Library:
    """`flags` come after the usual ones."""
    if not flags:
        return classic.classic_library()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "classic.so"
        subprocess.run(["g++", *FLAGS, *flags, str(SOURCE), "-o", str(made)], check=True)
        return classic.declare(ctypes.CDLL(str(made)))


def has_avx2() -> bool:
    """On Linux; elsewhere it is not asked."""
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return {"avx2", "fma", "bmi2"} <= set(words)
