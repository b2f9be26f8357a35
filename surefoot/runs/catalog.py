"""The runs below a directory, kept up to date at a cost that depends only on what is new.

A look costs one `stat` per finished run and a few per running one. If a log has grown, only its new lines are read; if
a long log is seen for the first time, only its end.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from time import time

from surefoot.errors import CheckpointError, SurefootError
from surefoot.runs.checkpoints import is_step
from surefoot.runs.columns import columns_of, numbers_of, open_log
from surefoot.runs.directory import RunDirectory
from surefoot.runs.files import read_json, read_regular
from surefoot.runs.index import MANIFEST, STATUS, started
from surefoot.runs.life import Life, State, read_life
from surefoot.runs.manifest import other_schema
from surefoot.runs.walking import SETTLED, Listing, run_folders
from surefoot.schema import Misfit

TAIL = 2**14  # bytes that are read at the end of a log seen for the first time
READ = ("manifest.json", "config.toml", "status.json", "metrics.jsonl", "timings.jsonl", "videos", "checkpoints")
# Settings that do not change what is learned.
RUNNING = {
    "seed", "name", "tags", "device", "threads", "log_every", "checkpoint_every", "keep_checkpoints", "max_time",
    "log_info", "callbacks", "trackers", "eval_every", "selection_episodes", "eval_episodes", "video_every", "workers",
    "env_timeout", "restart_workers", "preset",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """What a list shows of a run. `why`: the reason if all or part of it cannot be read."""

    id: str  # its path below the root
    directory: RunDirectory = field(repr=False, compare=False)
    name: str | None = None
    tags: tuple[str, ...] = ()
    env: str | None = None
    algo: str | None = None
    seed: int | None = None
    created: float = 0.0
    group: str = ""  # the same for runs with the same settings, the seed apart
    total_steps: int | None = None
    state: State = "unknown"
    heartbeat: float | None = None
    step: int = 0
    episode_return: float | None = None  # the newest
    eval_return: float | None = None  # the newest
    size: int = 0  # bytes of whole lines of metrics
    why: str | None = None


@dataclass
class _Known:
    """What was read about a run, and the time stamps that tell whether it is still current."""

    entry: Entry
    stamp: int  # the folder's: renaming a file into it changes this
    looked: float


class Catalog:
    """`look()` brings `entries` up to date and returns the ids that changed or are gone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: dict[str, Entry] = {}
        self._known: dict[Path, _Known] = {}
        self._folders: dict[Path, Listing] = {}  # what the last look found in them

    def look(self) -> set[str]:
        before, found = self.entries, {}
        for path in run_folders(self.root, self._folders):
            with suppress(FileNotFoundError, NotADirectoryError):
                entry = self._examined(path)
                found[entry.id] = entry
        self._known = {path: known for path, known in self._known.items() if known.entry.id in found}
        self.entries = dict(sorted(found.items(), key=lambda item: (-item[1].created, item[0])))
        return {id for id in before.keys() | found.keys() if before.get(id) != found.get(id)}

    def latest(self) -> str | None:
        """The run that was started last."""
        return next(iter(self.entries), None)

    def _examined(self, path: Path) -> Entry:
        known, now = self._known.get(path), time()
        stamp = _stamp(path)
        settled = known is not None and known.stamp == stamp and known.looked - stamp / 1e9 > SETTLED
        if known is None or not settled or known.entry.why is not None:
            entry = _read(path, self.root, known.entry if known else None)
        elif known.entry.state in ("running", "unknown"):
            entry = _grown(known.entry)
        else:
            return known.entry
        self._known[path] = _Known(entry, stamp, now)
        return entry


def _stamp(path: Path) -> int:
    """FileNotFoundError: it is gone."""
    try:
        return os.stat(path).st_mtime_ns
    except PermissionError:
        return 0


def _read(path: Path, root: Path, before: Entry | None) -> Entry:
    """Read everything about a run; only its log is continued from where it was read before."""
    run = RunDirectory(path)
    # Bytes that are not UTF-8 cannot be sent to a page and back.
    id = os.fsencode(path.relative_to(root).as_posix()).decode(errors="backslashreplace")
    blank = Entry(id, run, size=before.size if before else 0)
    try:
        _refuse_links(path)
        manifest = read_json(run.manifest)
        MANIFEST.check(manifest, "manifest.json")
        group, total_steps = _settings(run)
    except (SurefootError, Misfit, OSError) as error:
        return replace(blank, why=str(error), created=_written(run.manifest))
    entry = replace(
        blank,
        name=manifest.get("name"),
        tags=tuple(manifest.get("tags") or ()),
        env=manifest.get("env"),
        algo=manifest.get("algo"),
        seed=manifest.get("seed"),
        created=started(manifest.get("created"), _written(run.manifest)),
        group=group,
        total_steps=total_steps,
        episode_return=before.episode_return if before else None,
        eval_return=before.eval_return if before else None,
        step=before.step if before else 0,
        why=other_schema(manifest),
    )
    return _grown(entry)


def _refuse_links(path: Path) -> None:
    """Like `RunDirectory.refuse_links`, for the files that are read here, with one look at the folder."""
    with os.scandir(path) as entries:
        link = next((entry.name for entry in entries if entry.is_symlink() and entry.name in READ), None)
    if link is not None:
        raise CheckpointError(f"{path / link} is a link; only files of the run itself are read")


def _grown(entry: Entry) -> Entry:
    """The entry, updated from its status and the new lines of its log."""
    run, why = entry.directory, entry.why
    status: dict[str, object] = {}
    try:
        status = read_json(run.status) if os.path.lexists(run.status) else {}
        if status:
            STATUS.check(status, "status.json")
    except (SurefootError, Misfit) as error:
        status, why = {}, str(error)
    life = read_life(run, status.get("state", "unknown"))
    entry = _with_rows(entry)
    said, evaluated = status.get("step"), status.get("eval_return")
    return replace(
        entry,
        state=life.state,
        heartbeat=_coarse(life),
        step=max(said if isinstance(said, int) else 0, entry.step),
        eval_return=_finite(evaluated) if entry.eval_return is None else entry.eval_return,
        why=why,
    )


def _coarse(life: Life) -> float | None:
    """The heartbeat of a running run, to ten seconds: the list should not change with every write."""
    if life.heartbeat is None or not life.alive:
        return life.heartbeat
    return life.heartbeat // 10 * 10


def _with_rows(entry: Entry) -> Entry:
    with open_log(entry.directory.metrics) as log:
        if log is None or (log.size == entry.size and log.begins_line(entry.size)):
            return entry if log is not None else replace(entry, size=0)
        if not log.begins_line(entry.size):  # cut back by a resume
            entry = replace(entry, size=0, step=0)
        start = max(entry.size, log.size - TAIL)
        first = log.line_at(start)
        lines = b"" if first is None else b"".join(log.chunks(first[0], log.size))
    newest = _newest(lines)
    return replace(
        entry,
        size=log.size,
        step=int(newest.get("step", entry.step)),
        episode_return=newest.get("episode_return", entry.episode_return),
        eval_return=newest.get("eval_return", entry.eval_return),
    )


def _newest(lines: bytes) -> dict[str, float]:
    """The last value of each column that a list shows."""
    names = ("step", "episode_return", "eval_return")
    columns = numbers_of(lines, names) or columns_of(lines, names)
    found = {name: next((x for x in reversed(values) if isfinite(x)), None) for name, values in columns.items()}
    return {name: value for name, value in found.items() if value is not None}


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and isfinite(value) else None


def _settings(run: RunDirectory) -> tuple[str, int | None]:
    """(a digest of the settings, total_steps), from the text: parsing a thousand files would take too long."""
    digest, total, skipping = hashlib.sha256(), None, False
    for line in read_regular(run.config, 2**20).decode(errors="replace").splitlines():
        name, assigns, value = line.partition(" = ")
        if assigns and not line.startswith(" "):
            skipping = name in RUNNING
            if name == "total_steps" and is_step(value):
                total = int(value)
        if not skipping:
            digest.update(f"{line}\n".encode())
    return digest.hexdigest()[:16], total


def _written(manifest: Path) -> float:
    """FileNotFoundError: it is gone."""
    try:
        return os.lstat(manifest).st_mtime
    except PermissionError:
        return 0.0
