"""Compiles an exported policy with the C compiler of this machine, and runs its test program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.errors import SurefootError, UsageError
from surefoot.text import one_line

if TYPE_CHECKING:
    from pathlib import Path

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic-errors", "-O2")
COMPILE_SECONDS, RUN_SECONDS = 600, 600
REPORT = re.compile(r"records=(\d+) params=(\S+) actions=(\S+) ties=(\d+) wrong=(\d+)")


@dataclass(frozen=True)
class Replayed:
    records: int
    params: float  # the largest difference
    actions: float
    ties: int  # choices that differ where two were equally likely up to rounding
    wrong: int  # choices that differ elsewhere, and results that are not finite
    passed: bool


def find_compiler() -> tuple[str, ...] | None:
    """The words of `CC` (`ccache gcc`, for example), or the first C compiler that is there."""
    if named := os.environ.get("CC", "").strip():
        try:
            words = tuple(shlex.split(named))
        except ValueError:
            words = ()
        if not words or shutil.which(words[0]) is None:
            raise UsageError(f"CC={one_line(named)} names no compiler that can be found; correct it, or unset it")
        return words
    return next(((found,) for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def replay(
    folder: Path, name: str, recording: Path, allowed: float, compiler: Sequence[str], flags: Sequence[str]
) -> Replayed:
    """Run the test program in `folder` on the recording. `allowed`: largest difference."""
    program = _compiled(folder, name, compiler, flags)
    done = run_tool([str(program), str(recording), repr(allowed)], folder, RUN_SECONDS)
    found = REPORT.search(done.stdout)
    if found is None:
        raise SurefootError(f"the test program of the exported policy failed: {one_line(done.stderr, 2000)}")
    records, ties, wrong = (int(found[group]) for group in (1, 4, 5))
    return Replayed(records, float(found[2]), float(found[3]), ties, wrong, done.returncode == 0)


def _compiled(folder: Path, name: str, compiler: Sequence[str], flags: Sequence[str]) -> Path:
    """The test program, compiled unless an earlier check did so: a large network takes a while."""
    program = folder / f"{name}_test.out"
    if not program.exists():
        sources = [f"{name}.c", f"{name}_test.c"]
        built = run_tool([*compiler, *flags, *sources, "-o", str(program)], folder, COMPILE_SECONDS)
        if built.returncode:
            said = one_line(built.stderr, 2000) or f"it ended with exit code {built.returncode} and printed nothing"
            raise SurefootError(f"{' '.join(compiler)} does not compile the exported policy: {said}")
    return program


def run_tool(words: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise SurefootError(f"{words[0]} did not finish within {seconds:g} seconds") from None
    except OSError as error:
        raise SurefootError(f"{words[0]} cannot be executed: {error.strerror}") from None
