"""The names of engines and precisions. Imports no torch: the command line checks them before anything is loaded."""

from __future__ import annotations

from typing import Literal

from surefoot.errors import UsageError, did_you_mean
from surefoot.user_code import installed, is_from_python, name_of, names_code

AUTO, CUDA = "auto", "cuda"
Precision = Literal["float32", "tf32", "bf16"]  # of products of matrices on a GPU
GROUP = "surefoot.engines"  # entry points of installed packages
BUILT_IN = {  # in the order in which `auto` tries them
    "native": "surefoot.engine.native.engine:NativeEngine",
    "hybrid": "surefoot.engine.native.engine:HybridEngine",
    CUDA: "surefoot.engine.cuda.engine:CudaEngine",
    "torch": "surefoot.engine.torch.engine:TorchEngine",
}


def check_name(name: str) -> None:
    """Refuse names that cannot be an engine. Executes no code."""
    if name in (AUTO, *BUILT_IN) or names_code(name) or is_from_python(name):
        return
    known = [AUTO, *BUILT_IN, *installed(GROUP)]
    if name not in known:
        raise UsageError(
            f"unknown engine '{name}'{did_you_mean(name, known)} (known: {', '.join(known)}; one of your own is "
            "file.py:Class or module:Class)"
        )


def engine_name(engine: type) -> str:
    """The name that the settings record for an engine passed as a class."""
    name = name_of(engine)
    return next((ours for ours, path in BUILT_IN.items() if path == name), name)
