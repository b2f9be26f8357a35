"""Many runs by a few words: directories, folders of runs, environments, globs, names, prefixes, `latest`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path

from surefoot.errors import CheckpointError, UsageError, did_you_mean
from surefoot.runs.directory import ROOT, RunDirectory
from surefoot.runs.files import read_json
from surefoot.runs.index import find_run, list_runs
from surefoot.runs.run import Run


def select_runs(words: Sequence[str | Path], root: Path = ROOT) -> list[Run]:
    """The runs that the words name, each once, in the order of the words and, within a word, of their start times.

    A word is a run's directory, a folder with runs in it (also one below `root`, such as `CartPole-v1/ppo`), an env
    (all runs on it below `root`), a glob, a run's name, the beginning of the names of one or several runs, or `latest`.
    """
    found: dict[str, Run] = {}
    for word in words:
        runs = list(_named(word, root))
        if not runs:
            raise UsageError(_nothing(str(word), root))
        for run in runs:
            found.setdefault(os.path.realpath(run.path), run)
    return list(found.values())


def _named(word: str | Path, root: Path) -> Iterator[Run]:
    if str(word) == "latest":
        yield Run(find_run("latest", root))
        return
    if not os.path.isdir(word) and (trained := [run for run in list_runs(root) if _env_of(run) == str(word)]):
        yield from map(Run, trained)
        return
    for place in dict.fromkeys((Path(word), root / word)):
        if os.path.isdir(place):  # no error for a word that cannot be a file name
            inside = list_runs(place)
            yield from (Run(run) for run in inside)
            if inside:
                return
    if set(str(word)) & set("*?["):
        for match in sorted({*glob(str(word), recursive=True), *glob(str(root / word), recursive=True)}):
            yield from (Run(run) for run in list_runs(Path(match)))
        return
    wanted = str(word).rstrip("/")
    for run in list_runs(root):
        names = (run.path.name, str(run.path.relative_to(root)), str(run.path))
        if any(name.startswith(wanted) for name in names):
            yield Run(run)


def _env_of(run: RunDirectory) -> object:
    try:
        return read_json(run.manifest).get("env")
    except CheckpointError:  # it cannot be read, or is gone
        return None


def _nothing(word: str, root: Path) -> str:
    if os.path.isdir(word):
        return f"there are no runs in {word}/"
    runs = list_runs(root)
    if not runs and Path(word) == root:
        return f"there are no runs below {root}/; train one: surefoot train CartPole-v1"
    if not runs:
        return f"there is no run '{word}', and none below {root}/; train one: surefoot train CartPole-v1"
    names = {
        name for run in runs for name in (str(run.path.relative_to(root)), run.path.name, *_folders(run.path, root))
    }
    near = did_you_mean(word, sorted(sorted(names), key=len))
    return f"there is no run '{word}'{near} (`surefoot list runs` shows them)"


def _folders(path: Path, root: Path) -> Iterator[str]:
    parts = path.relative_to(root).parts
    yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
