"""The folder of a sweep: its plan (`sweep.toml`), and one directory per run. It alone says what is left to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Literal, Protocol

from surefoot import __version__
from surefoot.errors import SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.directory import ROOT, escape
from surefoot.runs.files import read_toml, sweep, write_atomic, write_errors_told
from surefoot.runs.hold import LOCK, Hold
from surefoot.sweep.grid import Grid, read_grids
from surefoot.sweep.plan import Plan, Planned

PLAN = "sweep.toml"
OUTPUT = "output.txt"  # in a run's directory: what its processes printed
LONGEST = 80  # characters of a folder name that we make up
HEAD = """\
# The plan of a sweep: every combination of these is a run in this folder. `surefoot sweep FOLDER` finishes it.
# docs/sweeps.md describes the format.
"""

State = Literal["done", "cut off", "missing"]


def held_folder(path: Path) -> Hold:
    """Make and lock a folder of many runs, and remove what killed writers left in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror}; choose another folder (--out)") from None
    held = Hold(path, instead="choose another folder (--out)")
    sweep(path)
    return held


class Holdable(Protocol):
    """The folder of a sweep or a tune."""

    @property
    def path(self) -> Path: ...

    def hold(self) -> Hold: ...


@contextmanager
def holding(folder: Holdable) -> Iterator[None]:
    """Hold the folder. If the command is refused, nothing of it is left: what was made for it is removed again."""
    path = folder.path
    missing = [place for place in (path / LOCK, path, *path.parents) if not os.path.lexists(place)]
    held = folder.hold()
    try:
        yield
    except UsageError:
        is_new = path in missing
        if not is_new or not any(path.rglob("manifest.json")):  # no run has begun in a new one
            if is_new:
                rmtree(path, ignore_errors=True)
            for place in missing:
                with suppress(OSError):
                    place.unlink() if place.name == LOCK else place.rmdir()
        raise
    finally:
        held.release()


@dataclass(frozen=True)
class SweepFolder:
    """Where the runs of a sweep are kept."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / PLAN

    def directory(self, run: Planned) -> RunDirectory:
        return RunDirectory(self.path / run.name)

    def hold(self) -> Hold:
        """Lock the folder: no other sweep may work in it until the hold is released."""
        if os.path.exists(self.path / "manifest.json"):
            raise UsageError(f"{self.path} is a run; choose another folder (--out)")
        return held_folder(self.path)

    def read(self) -> list[Grid]:
        """Every grid that was ever asked for here."""
        if not self.plan.is_file():
            raise UsageError(
                f"{self.path} has no {PLAN}, so it is not the folder of a sweep; to start one there: "
                f"surefoot sweep --env CartPole-v1 --out {self.path}"
            )
        return read_grids(self.plan)

    def remember(self, grids: Sequence[Grid]) -> None:
        """Add them to the plan, unless they are in it. The file may have been edited: what is there stays."""
        import tomli_w

        known = self.read() if self.plan.exists() else []
        new = [grid for grid in grids if grid not in known]
        if not new:
            return
        tables = [grid.as_toml() for grid in (*known, *new)]
        text = tomli_w.dumps({"surefoot": __version__, "grid": tables})
        with write_errors_told(self.plan):
            write_atomic(self.plan, HEAD + text)

    def version(self) -> str | None:
        """The surefoot that wrote the plan."""
        return str(read_toml(self.plan).get("surefoot")) if self.plan.exists() else None

    def state(self, run: Planned) -> State:
        """How far a run has come; UsageError if its directory holds a run with other settings."""
        directory = self.directory(run)
        if not os.path.lexists(directory.manifest):
            return "missing"
        other = run.unlike(read_toml(directory.config))
        if other:
            raise UsageError(
                f"{directory.path} was trained with other settings ({', '.join(other)}); remove it, or choose another "
                "folder (--out)"
            )
        return "done" if directory.read_status().get("state") == "done" else "cut off"


def states(folder: SweepFolder, plan: Plan) -> tuple[dict[str, State], dict[str, str]]:
    """(the state of every run, why some cannot be read), by name."""
    found: dict[str, State] = {}
    broken: dict[str, str] = {}
    for run in plan.runs:
        try:
            found[run.name] = folder.state(run)
        except UsageError:
            raise
        except SurefootError as error:  # one damaged run does not keep the others from being trained
            broken[run.name] = str(error)
    return found, broken


def usual_folder(grids: Iterable[Grid]) -> Path:
    """The default folder: the same for the same envs and algorithms, so that the same command continues its sweep."""
    envs = dict.fromkeys(env for grid in grids for env in grid.envs)
    algos = dict.fromkeys(algo for grid in grids for algo in grid.algos)
    name = "_".join("+".join(map(escape, names)) for names in (envs, algos))
    if len(name) > LONGEST:
        from hashlib import sha256

        name = f"{name[:LONGEST].rstrip('._+')}-{sha256(name.encode(errors='replace')).hexdigest()[:8]}"
    return ROOT / "sweeps" / name
