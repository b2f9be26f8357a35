"""The native kernels: built where there is a C++ compiler, left out where there is none. All else is in pyproject.toml.

Each of them is a plain shared library with a C interface, loaded at run time (surefoot/kernels/library.py), so nothing
here depends on a Python version or on PyTorch. The networks are built once for each instruction set; the right one is
chosen where the program runs, so that a wheel is safe on other machines.
"""

import hashlib
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "surefoot/kernels/src"
COMMON = ["-std=c++17", "-O3", "-g0", "-pthread"]
NETWORKS = ["-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi"]
# Every product and sum of the envs' dynamics is rounded as Python rounds it.
DYNAMICS = ["-ffp-contract=off", "-fno-fast-math"]
VARIANTS = {"base": []}
if platform.machine() in ("x86_64", "AMD64"):
    VARIANTS = {
        "v2": ["-march=x86-64-v2"],
        "v3": ["-march=x86-64-v3"],
        "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    }


class OptionalKernels(build_ext):
    """Kernels that cannot be built are reported, and surefoot runs on PyTorch alone."""

    def build_extension(self, extension):
        try:
            super().build_extension(extension)
        except Exception as error:
            print(f"surefoot: {extension.name} was not built ({error}); that engine is left out, all else works")


def fingerprint():
    """Of the sources, so that a library that was built from others is told apart (surefoot/kernels/library.py)."""
    files = sorted([*Path(SOURCES).glob("*.hpp"), *Path(SOURCES).glob("*.cpp")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def kernel(name, source, flags):
    headers = sorted(str(path) for path in Path(SOURCES).glob("*.hpp"))
    return Extension(
        f"surefoot.kernels.{name}",
        [f"{SOURCES}/{source}.cpp"],
        depends=headers,
        extra_compile_args=[*COMMON, *flags],
        define_macros=[("SUREFOOT_SOURCES", f'"{fingerprint()}"')],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


setup(
    ext_modules=[
        kernel("_classic", "classic", DYNAMICS),
        *(kernel(f"_nn_{name}", "nn", [*NETWORKS, *flags]) for name, flags in VARIANTS.items()),
    ],
    cmdclass={"build_ext": OptionalKernels},
)
