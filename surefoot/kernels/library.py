"""Finds the compiled kernels for this processor."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from functools import cache
from pathlib import Path
from typing import TypedDict, cast

from surefoot.errors import UsageError
from surefoot.kernels.recipe import RECORD, SUFFIX, fingerprint, variants
from surefoot.kernels.structs import disagreement

# Instruction sets, best first, and the CPU features that each needs.
VARIANTS = {name: frozenset(features) for name, features in variants().items()}
FORCED = "SUREFOOT_KERNELS"  # =v2 forces a variant, because results differ in the last bits
DOCTOR = "`surefoot doctor` tells why"


class NotBuilt(Exception):
    """There is no library for this processor; the message says why."""


@cache
def load(name: str) -> ctypes.CDLL:
    """Load the library of this name: its variant for this processor, or the only one."""
    file = find(name)
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NotBuilt(f"{file.name} cannot be loaded: {error}") from None
    _require_same_sources(library)
    if name == "nn" and (different := disagreement(library)):
        raise NotBuilt(f"{file.name} is of another version: {different}; reinstall surefoot")
    return library


def _require_same_sources(library: ctypes.CDLL) -> None:
    """In a checkout, the sources may have changed since they were built; a wheel has none to compare with."""
    here = fingerprint(Path(__file__).parent / "src")
    if here is None:
        return
    library.surefoot_sources.restype = ctypes.c_char_p
    built = library.surefoot_sources().decode() if hasattr(library, "surefoot_sources") else "older ones"
    if built and built != here:
        raise NotBuilt("the native kernels were built from other sources than these: pip install -e . rebuilds them")


def find(name: str) -> Path:
    """The file of a library. Files with other names, such as earlier builds for one Python version, are ignored."""
    folder = Path(__file__).parent
    if (only := folder / f"_{name}{SUFFIX}").exists():
        return only
    built = [variant for variant in VARIANTS if (folder / f"_{name}_{variant}{SUFFIX}").exists()]
    if forced := os.environ.get(FORCED):
        _require(forced, built)
        return folder / f"_{name}_{forced}{SUFFIX}"
    for variant in built:
        if VARIANTS[variant] <= features():
            return folder / f"_{name}_{variant}{SUFFIX}"
    if built:
        raise NotBuilt(f"the native kernels were built for other processors than this {platform.machine()}")
    raise NotBuilt(_why_not(name))


def _require(forced: str, built: list[str]) -> None:
    """Raise an error if the forced variant cannot be used."""
    if forced not in VARIANTS:
        known = ", ".join(VARIANTS)
        raise UsageError(f"{FORCED}={forced} is not a variant of the native kernels here; available: {known}")
    if lacking := VARIANTS[forced] - features():
        raise UsageError(f"{FORCED}={forced}: this processor lacks {', '.join(sorted(lacking))}")
    if forced not in built:
        found = ", ".join(built) or "none"
        raise UsageError(f"{FORCED}={forced}: that variant was not built ({found} of them were); {DOCTOR}")


class BuildRecord(TypedDict, total=False):
    compiler: str
    libraries: dict[str, str | None]


class KernelFacts(TypedDict, total=False):
    variant: str | None
    compiler: str
    why: str  # why there are no kernels


def build_record() -> BuildRecord:
    """The record of setup.py: `compiler`, and under `libraries` the error of each (null: none)."""
    try:
        found = json.loads((Path(__file__).parent / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(BuildRecord, found) if isinstance(found, dict) else {}


def _why_not(name: str) -> str:
    record = build_record()
    for library, trouble in record.get("libraries", {}).items():
        if library.startswith(f"_{name}") and trouble:
            said = next((line for line in trouble.splitlines() if "error" in line.lower()), trouble.splitlines()[0])
            return f"the native kernels could not be built: {said.strip()[:200]}"
    return "the native kernels were not built: install a C++ compiler (g++ or clang) and reinstall surefoot"


def complaints() -> list[str]:
    """Why this installation is slow, for the first lines of a run: otherwise PyTorch would silently take over."""
    try:
        load("nn")
    except NotBuilt:
        return [f"without its native kernels surefoot is many times slower; {DOCTOR}"]
    best = next((name for name, needed in VARIANTS.items() if needed <= features()), None)
    using = variant()
    if os.environ.get(FORCED) or best is None or best == using:
        return []
    return [f"the {using} kernels serve, because those for {best} were not built; {DOCTOR}"]


def variant() -> str | None:
    """The name of the instruction set that the networks use; None if there are no kernels."""
    try:
        load("nn")
        return find("nn").stem.removeprefix("_nn_")
    except NotBuilt:
        return None


def facts() -> KernelFacts:
    """Properties of the kernels that affect the last bits of a result, for a run's manifest."""
    try:
        library = load("nn")
    except NotBuilt as reason:
        return {"variant": None, "why": str(reason)}
    library.surefoot_compiler.restype = ctypes.c_char_p
    return {"variant": variant(), "compiler": library.surefoot_compiler().decode(errors="replace")}


@cache
def features() -> frozenset[str]:
    """This processor's features, as named by Linux. Empty if unknown; then the base variant is used."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return frozenset(flags)
