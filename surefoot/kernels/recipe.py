"""Shared by setup.py, which builds the kernels, and the loader. setup.py runs this file alone: stdlib only.

The libraries have a plain C interface and are named without a Python version: one build serves every Python.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

SUFFIX = ".dll" if os.name == "nt" else ".so"
RECORD = "build.json"  # beside the libraries: the compiler and its errors
# The x86-64 levels: each feature by its Linux name, with the compiler's flag for it.
# They are listed because GCC before 11 does not know `-march=x86-64-v3`; the generated code is the same.
V2 = {
    "pni": "-msse3",
    "ssse3": "-mssse3",
    "sse4_1": "-msse4.1",
    "sse4_2": "-msse4.2",
    "popcnt": "-mpopcnt",
    "cx16": "-mcx16",
    "lahf_lm": "-msahf",
}
V3 = {
    "avx": "-mavx",
    "avx2": "-mavx2",
    "fma": "-mfma",
    "f16c": "-mf16c",
    "bmi1": "-mbmi",
    "bmi2": "-mbmi2",
    "abm": "-mlzcnt",
    "movbe": "-mmovbe",
    "xsave": "-mxsave",
}
V4 = {f"avx512{part}": f"-mavx512{part}" for part in ("f", "bw", "cd", "dq", "vl")}
X86 = {"v4": V2 | V3 | V4, "v3": V2 | V3, "v2": V2, "base": dict[str, str]()}
# Every arm64 processor has NEON.
ARM = {"neon": dict[str, str]()}
OTHER = {"base": dict[str, str]()}


def variants(machine: str | None = None) -> dict[str, dict[str, str]]:
    """The instruction sets to build the networks for on this machine, best first: {name: {feature: flag}}."""
    name = (machine or platform.machine()).lower()
    if name in ("x86_64", "amd64"):
        return X86
    return ARM if name in ("aarch64", "arm64") else OTHER


def fingerprint(folder: Path) -> str | None:
    """A hash of the sources and of this file, or None without sources, as in a wheel."""
    files = sorted([*folder.glob("*.hpp"), *folder.glob("*.cpp")])
    if not files:
        return None
    files.append(folder.parent / "recipe.py")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
