"""`surefoot doctor` without an env: what is installed, which kernels are used, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict

from surefoot import __version__
from surefoot.errors import UsageError
from surefoot.kernels import library
from surefoot.kernels.recipe import SUFFIX
from surefoot.limits import most_threads
from surefoot.runs import locks
from surefoot.runs.manifest import processor, version_of

PACKAGES = ("torch", "numpy", "gymnasium")
EXTRAS = {  # extra in pyproject.toml -> a module that shows whether it is installed
    "box2d": "Box2D",
    "mujoco": "mujoco",
    "atari": "ale_py",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
    "slurm": "submitit",
    "tune": "optuna",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "ray": "ray",
    "plots": "matplotlib",
    "docs": "sphinx",
    "onnx": "onnxruntime",
    "wasm": "ziglang",
    "jax": "jax",
    "ui": "starlette",
}
MOST_LINES = 12  # shown from the compiler's output


class Kernels(TypedDict):
    """The kernels in use, and how they were built."""

    compiler: str | None
    troubles: dict[str, str]
    built: list[str]
    runnable: list[str]
    forced: str | None
    nn: bool
    classic: bool
    variant: NotRequired[str | None]
    why: NotRequired[str]


class PyTorch(TypedDict, total=False):
    torch_instructions: str
    gpus: list[str]
    cores: int | None
    threads: int


class Installation(PyTorch):
    surefoot: str
    python: str
    executable: str
    system: str
    processor: str
    versions: dict[str, str | None]
    extras: dict[str, bool]
    kernels: Kernels
    errors: list[str]
    warnings: list[str]


def examine() -> Installation:
    """The facts that `describe` reports."""
    errors, warnings = list[str](), locks.complaints()
    found: Installation = {
        "surefoot": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "system": platform.platform(),
        "processor": processor(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "extras": {name: find_spec(module) is not None for name, module in EXTRAS.items()},
        "kernels": _kernels(errors, warnings),
        "errors": errors,
        "warnings": warnings,
    }
    if found["extras"]["mujoco"] and (why := _no_batch()):
        warnings.append(f"MuJoCo's envs are stepped one by one, which is slower: {why}")
    try:
        return {**found, **_torch()}
    except Exception as error:  # whatever a broken package raises
        errors.append(f"PyTorch cannot be imported, and training needs it: {error}")
    return found


def _no_batch() -> str:
    """Why MuJoCo cannot step envs in batches; empty if it can."""
    from surefoot.envs.mujoco.batch import NoBatch, batch_library

    try:
        batch_library()
    except NoBatch as reason:
        return str(reason)
    return ""


def _torch() -> PyTorch:
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch_instructions": capability, "gpus": gpus, "cores": os.cpu_count(), "threads": most_threads()}


def _kernels(errors: list[str], warnings: list[str]) -> Kernels:
    """The kernels in use, and setup.py's record of building them; problems are added to the two lists."""
    folder = Path(library.__file__).parent
    record = library.build_record()
    found: Kernels = {
        "compiler": record.get("compiler"),
        "troubles": {name: said for name, said in record.get("libraries", {}).items() if said},
        "built": [name for name in library.VARIANTS if (folder / f"_nn_{name}{SUFFIX}").exists()],
        "runnable": [name for name, needed in library.VARIANTS.items() if needed <= library.features()],
        "forced": os.environ.get(library.FORCED) or None,
        "nn": _loads("nn", errors, warnings),
        "classic": _loads("classic", errors, warnings),
    }
    if found["nn"]:
        facts = library.facts()
        found["variant"], found["compiler"] = facts["variant"], facts["compiler"]
        warnings += library.complaints()
    return found


def _loads(name: str, errors: list[str], warnings: list[str]) -> bool:
    try:
        library.load(name)
        return True
    except (library.NotBuilt, UsageError) as reason:
        (warnings if isinstance(reason, library.NotBuilt) else errors).append(str(reason))
        return False


def describe(found: Installation) -> Iterator[str]:
    """The report as lines of text."""
    rows = {
        "Python": f"{found['python']}, {found['executable']}",
        "system": f"{found['system']}, {found['processor']}",
        "packages": ", ".join(f"{name} {number or 'is missing'}" for name, number in found["versions"].items()),
        "kernels": _describe_kernels(found["kernels"]),
        "classic control": "native" if found["kernels"]["classic"] else "Gymnasium's own",
    }
    if "threads" in found:
        rows["PyTorch"] = f"{found['torch_instructions']}, " + (", ".join(found["gpus"]) or "no GPU")
        rows["threads"] = f"up to {found['threads']} of {found['cores']} cores"
    for state, word in ((True, "extras"), (False, "not installed")):
        if names := [name for name, here in found["extras"].items() if here is state]:
            rows[word] = ", ".join(names)
    yield f"surefoot {found['surefoot']}"
    yield from (f"  {name:<16} {value}" for name, value in rows.items())
    yield ""
    yield from (f"✗ error: {text}" for text in found["errors"])
    yield from (f"! warning: {text}" for text in dict.fromkeys(found["warnings"]))
    for name, said in found["kernels"]["troubles"].items():
        yield f"! warning: {name} could not be built with {found['kernels']['compiler']}:"
        yield from (f"    {line}" for line in said.splitlines()[:MOST_LINES])
    if found["kernels"]["troubles"] or not found["kernels"]["built"]:
        yield "    → install a C++ compiler (g++ 9 or later, or clang) and reinstall surefoot with `pip install -v`"
    if not found["errors"] and not found["warnings"]:
        yield "everything is in order; to check an environment: surefoot doctor CartPole-v1"


def _describe_kernels(kernels: Kernels) -> str:
    if not kernels["nn"]:
        return "none: PyTorch does everything, many times slower"
    forced = f", forced by {library.FORCED}" if kernels["forced"] else ""
    return f"{kernels.get('variant')}{forced} (built: {', '.join(kernels['built'])}; by {kernels['compiler']})"
