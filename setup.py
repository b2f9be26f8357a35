"""The native kernels: built where there is a C++ compiler, left out where there is none. All else is in pyproject.toml.

Each of them is a plain shared library with a C interface, loaded at run time (surefoot/kernels/library.py), so nothing
here depends on a Python version or on PyTorch. The networks are built once for each instruction set
(surefoot/kernels/recipe.py); the right one is chosen where the program runs, so a wheel is safe on other machines.
What was built, and what the compiler said where it failed, is written down beside the libraries: pip hides it.
"""

import json
import os
import platform
import runpy
import shlex
import subprocess
import sysconfig
from copy import copy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("surefoot/kernels")
SOURCES = KERNELS / "src"
RECIPE = runpy.run_path(str(KERNELS / "recipe.py"))
COMMON = ["-std=c++17", "-O3", "-g0", "-pthread"]
NETWORKS = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi"]
# Every product and sum of the envs' dynamics is rounded as Python rounds it.
DYNAMICS = ["-ffp-contract=off", "-fno-fast-math"]
WIDTH = {"v4": ["-mprefer-vector-width=512"]}  # compilers would rather use half of a register
PATIENCE = 300  # seconds for a compiler to repeat what was wrong
MOST_WORDS = 2000  # characters of that which are kept


class BuildKernels(build_ext):
    """Kernels that cannot be built are left out and written down, and surefoot runs on PyTorch alone."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        self.built = {}

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + RECIPE["SUFFIX"]

    def get_outputs(self):
        return [*super().get_outputs(), str(self._folder() / RECIPE["RECORD"])]

    def build_extension(self, extension):
        name = extension.name.rpartition(".")[2]
        alone = copy(self)  # several are made at once from one source: each has its own place for the object file
        alone.build_temp = os.path.join(self.build_temp, name)
        try:
            build_ext.build_extension(alone, extension)
            self.built[name] = None
        except Exception as error:
            self.built[name] = _what_it_said(error)[:MOST_WORDS]
            print(f"surefoot: {name} was not built: {self.built[name]}\nThat engine is left out; all else works.")

    def run(self):
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        super().run()
        mine = {f"{name}{RECIPE['SUFFIX']}" for name, trouble in self.built.items() if trouble is None}
        for file in [*folder.glob("_classic*.*"), *folder.glob("_nn_*.*")]:
            if file.name not in mine:  # of an earlier build, or of one for a certain Python
                file.unlink()
        command = getattr(self.compiler, "compiler_so_cxx", None) or [self.compiler.compiler_type]
        record = {"compiler": _version(command[0]), "command": shlex.join(command), "libraries": self.built}
        (folder / RECIPE["RECORD"]).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _folder(self):
        """Where the libraries go: into the checkout for `pip install -e`, else into what becomes the wheel."""
        return KERNELS if self.inplace or self.editable_mode else Path(self.build_lib) / KERNELS


class AnyPython(bdist_wheel):
    """One wheel per platform: the libraries do not know Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def _what_it_said(error):
    """The words of a compiler that failed: it is asked once more, because nobody listened the first time."""
    failed = error
    while failed is not None and not isinstance(failed, subprocess.CalledProcessError):
        failed = failed.__cause__ or failed.__context__
    if failed is None:
        return str(error)
    try:
        done = subprocess.run(failed.cmd, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return str(error)
    return (done.stderr or done.stdout).decode(errors="replace").strip() or str(error)


def _version(command):
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return command
    return (done.stdout.splitlines() or [command])[0]


def kernel(name, source, flags):
    return Extension(
        f"surefoot.kernels.{name}",
        [str(SOURCES / f"{source}.cpp")],
        depends=[str(KERNELS / "recipe.py"), *sorted(str(path) for path in SOURCES.glob("*.hpp"))],
        extra_compile_args=[*COMMON, *flags],
        define_macros=[("SUREFOOT_SOURCES", f'"{RECIPE["fingerprint"](SOURCES)}"')],
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


def machine():
    """The one that is built for, which is not always this one. `universal2` is two: the one of them that this is."""
    name = sysconfig.get_platform().rpartition("-")[2]
    return platform.machine() if name == "universal2" else name


setup(
    ext_modules=[
        kernel("_classic", "classic", DYNAMICS),
        *(
            kernel(f"_nn_{name}", "nn", [*NETWORKS, *features.values(), *WIDTH.get(name, [])])
            for name, features in RECIPE["variants"](machine()).items()
        ),
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPython},
)
