"""The folder of a tune: what was asked for (`tune.toml`), Optuna's journal, the runs, and what came out of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot import __version__
from surefoot.errors import UsageError
from surefoot.runs.directory import ROOT, shell_path
from surefoot.runs.files import read_toml, write_atomic, write_errors_told
from surefoot.runs.hold import Hold
from surefoot.sweep.folder import SweepFolder, held_folder, usual_folder
from surefoot.sweep.grid import Grid

WISH = "tune.toml"
HEAD = """\
# What a tune was asked for. `surefoot tune FOLDER` continues it; its trials are in journal.log and trials/.
"""
TABLES = ("settings", "search")


@dataclass(frozen=True)
class Wish:
    """What to search, and how. Everything but the budget stays the same as long as a tune lasts."""

    env: str
    algo: str
    total_steps: int
    settings: Mapping[str, object]  # fixed, as they were typed
    search: Mapping[str, str]  # the range of every setting that is searched, as `--search` takes it
    seeds: int  # per trial, on the first rung
    validation_seeds: int
    seed: int  # for the sampler and all runs
    budget: str  # what was typed last

    def as_toml(self) -> dict[str, object]:
        return {**vars(self), "settings": dict(self.settings), "search": dict(self.search)}


@dataclass(frozen=True)
class TuneFolder:
    """Where a tune keeps everything."""

    path: Path

    @property
    def wish(self) -> Path:
        return self.path / WISH

    @property
    def journal(self) -> Path:
        return self.path / "journal.log"

    @property
    def stopwatch(self) -> Path:
        return self.path / "time.json"

    @property
    def trials(self) -> SweepFolder:
        return SweepFolder(self.path / "trials")

    @property
    def validation(self) -> SweepFolder:
        return SweepFolder(self.path / "validation")

    @property
    def preset(self) -> Path:
        """The settings that were found, if they are better than the default."""
        return self.path / "preset.toml"

    @property
    def candidate(self) -> Path:
        """The settings that did best in the search, if they are not shown to be better."""
        return self.path / "candidate.toml"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def picture(self) -> Path:
        return self.path / "importance.svg"

    @property
    def again(self) -> str:
        """What to type to continue, without the flags that choose where the runs are trained."""
        return f"surefoot tune {shell_path(self.path)}"

    def hold(self) -> Hold:
        """Lock the folder: no other tune may work in it until the hold is released."""
        if any(os.path.exists(self.path / name) for name in ("manifest.json", "sweep.toml")):
            raise UsageError(f"{self.path} is a run or a sweep; choose another folder (--out)")
        return held_folder(self.path)

    def read(self) -> Wish:
        """What was asked for here; UsageError if it is no folder of a tune."""
        if not self.wish.is_file():
            raise UsageError(
                f"{self.path} has no {WISH}, so it is not the folder of a tune; to start one there: "
                f"surefoot tune CartPole-v1 --out {shell_path(self.path)}"
            )
        found = read_toml(self.wish)
        names, numbers = ("env", "algo", "budget"), ("total_steps", "seeds", "validation_seeds", "seed")
        words = [found.get(name) for name in names]
        counts = [found.get(name) for name in numbers]
        settings, search = (found.get(name) for name in TABLES)
        if (
            not all(isinstance(word, str) for word in words)
            or not all(isinstance(count, int) and count >= 0 for count in counts)
            or not isinstance(settings, dict)
            or not isinstance(search, dict)
            or not all(isinstance(text, str) for text in search.values())
        ):
            raise UsageError(f"{self.wish} is damaged; begin anew in another folder (--out)")
        return Wish(
            env=str(words[0]),
            algo=str(words[1]),
            total_steps=int(found["total_steps"]),
            settings=settings,
            search=search,
            seeds=int(found["seeds"]),
            validation_seeds=int(found["validation_seeds"]),
            seed=int(found["seed"]),
            budget=str(words[2]),
        )

    def remember(self, wish: Wish) -> None:
        """Write it down; UsageError if the folder was begun with something else. Only the budget may change."""
        import tomli_w

        if self.wish.exists():
            before, now = self.read().as_toml(), wish.as_toml()
            other = [name for name, value in now.items() if before[name] != value and name != "budget"]
            if other:
                raise UsageError(
                    f"{self.path} was begun with other settings ({', '.join(other)}); continue it with `{self.again}`, "
                    "or choose another folder (--out)"
                )
        with write_errors_told(self.wish):
            write_atomic(self.wish, HEAD + tomli_w.dumps({"surefoot": __version__, **wish.as_toml()}))


def usual_place(env: str, algo: str) -> Path:
    """The default folder: the same for the same env and algorithm, so that the same command continues its tune."""
    return ROOT / "tunes" / usual_folder([Grid(envs=(env,), algos=(algo,))]).name
