"""Finds runs below a directory: all of them, or one by its name; and describes them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from math import isfinite
from pathlib import Path
from time import time
from typing import Any

from surefoot.errors import CheckpointError, SurefootError, UsageError, did_you_mean
from surefoot.runs.columns import numbers_of, open_log
from surefoot.runs.directory import ROOT, RunDirectory
from surefoot.runs.files import read_json, read_json_lines
from surefoot.runs.walking import run_folders
from surefoot.schema import Items, Misfit, Number, Optional, Record, Text, Whole

RETURN = Optional(Number(finite=False), later=True)
MANIFEST = Record(
    env=Optional(Text(), later=True),
    algo=Optional(Text(), later=True),
    seed=Optional(Whole(), later=True),
    name=Optional(Text(), later=True),
    tags=Optional(Items(Text()), later=True),
)
STATUS = Record(state=Text(), step=Optional(Whole(), later=True), eval_return=RETURN)
ROW = Record(step=Whole(), eval_return=RETURN, episode_return=RETURN)


def list_runs(root: Path = ROOT) -> list[RunDirectory]:
    """Every run below `root`, in the order in which they were started."""
    return [RunDirectory(path) for path in _in_order(run_folders(root))]


def _in_order(runs: Iterable[Path]) -> list[Path]:
    """Sorted by start time, without those that have disappeared."""
    dated = [(when, path) for path in runs if (when := _started(path / "manifest.json")) is not None]
    return [path for _, path in sorted(dated)]


def _started(manifest: Path) -> tuple[float, float] | None:
    """(when a run was started, when its manifest was written) in seconds since 1970; None: it is gone."""
    try:
        written = os.stat(manifest).st_mtime
    except OSError as error:
        return None if _is_gone(error) else (0.0, 0.0)
    try:
        return started(read_json(manifest).get("created"), written), written
    except CheckpointError:
        return written, written


def started(said: object, written: float) -> float:
    """When a run was started, in seconds since 1970. `said`: by its manifest, which was `written` then.

    A file's own time changes when a run is copied or touched. If the manifest does not say it, or names a
    time in the future, the file's time is used.
    """
    try:
        created = datetime.fromisoformat(str(said)).timestamp()
    except (ValueError, OverflowError, OSError):
        return written
    return created if created <= time() else written


def find_run(name: str | Path, root: Path = ROOT) -> RunDirectory:
    """A run by path, by `latest`, or by a unique prefix of its path below `root` or of its own name."""
    if _has_manifest(Path(name)):
        return RunDirectory(Path(name))
    runs = run_folders(root)
    if str(name) == "latest" and (dated := _in_order(runs)):
        return RunDirectory(dated[-1])
    if not runs:
        raise UsageError(f"there is no run '{name}', and none below {root}/; train one: surefoot train CartPole-v1")
    wanted = str(name).rstrip("/")

    def names(path: Path) -> tuple[str, ...]:
        return (path.name, str(path.relative_to(root)), str(path))

    exact = [path for path in runs if wanted in names(path)]
    matching = exact or [path for path in runs if any(n.startswith(wanted) for n in names(path))]
    if len(matching) == 1:
        return RunDirectory(matching[0])
    if matching:
        listed = "\n  ".join(map(str, _in_order(matching)[-5:]))
        raise UsageError(f"'{name}' matches {len(matching)} runs; name one of them:\n  {listed}")
    near = did_you_mean(wanted, sorted(sorted(found for path in runs for found in names(path)), key=len))
    raise UsageError(f"there is no run '{name}'{near} (`surefoot list runs` shows them, or use 'latest')")


def _has_manifest(path: Path) -> bool:
    try:
        os.stat(path / "manifest.json")
    except PermissionError as error:
        raise CheckpointError(f"the run {path} cannot be read: {error.strerror}") from None
    except (OSError, ValueError):  # not there, or not a valid file name
        return False
    return True


def _is_gone(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def describe(run: RunDirectory) -> dict[str, Any] | None:
    """What `surefoot list runs` shows; None if the run is gone. For an unreadable run, `why` says the reason."""
    try:
        manifest, status = read_json(run.manifest), run.read_status()
        MANIFEST.check(manifest, "manifest.json")
        STATUS.check(status, "status.json")
        return _description(run, manifest, status)
    except (SurefootError, Misfit, OSError) as error:
        try:
            os.lstat(run.manifest)
        except OSError as missing:
            if _is_gone(missing):
                return None
        return {"run": str(run.path), "state": "unreadable", "why": str(error)}


def _description(run: RunDirectory, manifest: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    steps, evaluated, trained = _numbers(run)
    final = status.get("eval_return")
    known = [*evaluated, *([] if final is None else [final])] or trained
    return {
        "run": str(run.path),
        "name": manifest.get("name"),
        "tags": manifest.get("tags") or [],
        "env": manifest.get("env"),
        "algo": manifest.get("algo"),
        "seed": manifest.get("seed"),
        "steps": max(status.get("step") or 0, int(steps[-1]) if steps and isfinite(steps[-1]) else 0),
        "return": status.get("eval_return"),
        "best": max(known, default=None),
        "state": status["state"],
    }


def _numbers(run: RunDirectory) -> tuple[list[float], list[float], list[float]]:
    """All steps, returns of evaluations and returns of training that its metrics have."""
    with open_log(run.metrics) as log:
        lines = b"".join(log.chunks(0, log.size)) if log is not None else b""
    quick = numbers_of(lines, ["step", "eval_return", "episode_return"]) if lines else None
    if quick is not None and len(quick["step"]) == lines.count(b"\n"):
        return quick["step"], quick["eval_return"], quick["episode_return"]
    rows = list(read_json_lines(run.metrics))
    for row in rows:
        ROW.check(row, "metrics.jsonl")
    evaluated, trained = ([row[n] for row in rows if row.get(n) is not None] for n in ("eval_return", "episode_return"))
    return [row["step"] for row in rows], evaluated, trained
