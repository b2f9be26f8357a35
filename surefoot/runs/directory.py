"""One training run on disk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, TypedDict, TypeVar

from surefoot.errors import CheckpointError, GoneError, UsageError
from surefoot.runs import locks
from surefoot.runs.files import (
    AppendedFile,
    JsonLines,
    LinesFile,
    read_json,
    sweep,
    write_atomic,
    write_json,
)
from surefoot.runs.hold import LOCK, Hold
from surefoot.schema import Items, MapOf, Optional, Record, Text, Whole
from surefoot.text import printable

ROOT = Path("runs")
Appended = TypeVar("Appended", bound=AppendedFile)
LOGS = Record(  # the state of the logs in a checkpoint
    sizes=Record({"metrics.jsonl": Whole(), "timings.jsonl": Whole(), "episodes.csv": Optional(Whole(), later=True)}),
    unwritten=MapOf(Items(Text())),
)


class Logs(NamedTuple):
    """The logs whose state is in a checkpoint."""

    metrics: JsonLines
    timings: JsonLines
    episodes: LinesFile


class LogState(TypedDict, total=False):
    """The state of the logs in a checkpoint; empty if the run has no directory."""

    sizes: dict[str, int]
    unwritten: dict[str, list[str]]


class RunDirectory:
    """The files of a run; `docs/runs.md` says what is in each."""

    def __init__(self, path: Path) -> None:
        self._name_files(path)
        self._logs: dict[str, AppendedFile] = {}
        self._notes = AppendedFile(self.log)
        self._appended: list[AppendedFile] = [self._notes]  # those that are open, or may be opened
        self.hold: Hold | None = None
        self.gone = False  # the directory was deleted while in use

    def _name_files(self, path: Path) -> None:
        self.path = path
        self.config, self.manifest = path / "config.toml", path / "manifest.json"
        self.metrics, self.timings = path / "metrics.jsonl", path / "timings.jsonl"
        self.episodes = path / "episodes.csv"
        self.tensorboard, self.checkpoints = path / "tensorboard", path / "checkpoints"
        self.status, self.result, self.log = path / "status.json", path / "result.json", path / "log.txt"
        self.videos, self.crash, self.exports = path / "videos", path / "crash", path / "exports"

    @classmethod
    def create(cls, path: str | Path | None, env: str, algo: str, seed: int, name: str | None = None) -> RunDirectory:
        """A new, empty, locked directory: the given one, or `runs/<env>/<algo>/<name>-<time>-s<seed>`.

        Fails before any work. The name comes first, so that it is the prefix by which commands find the run.
        """
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        called = "" if name is None else f"{_short(escape(name, 'run'))}-"
        target = ROOT / escape(env) / escape(algo) / f"{called}{stamp}-s{seed}" if path is None else Path(path)
        try:
            if path is None:
                target = _make_new(target)
            else:
                _refuse_a_run(target)
            target.mkdir(parents=True, exist_ok=True)
            run = cls(target)
            run.checkpoints.mkdir(exist_ok=True)
            run.lock()
            try:
                _refuse_a_run(target)  # again: another process may have trained here meanwhile, even to the end
                write_atomic(run.log, "")
            except BaseException:
                run.unlock()
                raise
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {target}: {error.strerror}; choose another --run-dir"
            ) from None
        return run

    @staticmethod
    def check_place(path: str | Path | None) -> None:
        """Fail before any env is made if the directory could not be written later."""
        from tempfile import mkdtemp  # imported here, because it would slow down every `--help` by milliseconds

        target = ROOT if path is None else Path(path)
        try:
            if path is not None:
                _refuse_a_run(target)
            existing = next(place for place in (target, *target.absolute().parents) if place.exists())
            os.rmdir(mkdtemp(prefix=".tmp-", dir=existing))
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {target}: {error.strerror}; choose another --run-dir"
            ) from None

    def lock(self) -> None:
        """Hold the run until this process ends, however it ends; BusyError if another process holds it."""
        self.hold = Hold(self.path)
        for folder in (self.path, self.checkpoints):
            sweep(folder)

    def watch(self) -> None:
        """Allow `follow` to find the directory after a rename, without locking it."""
        self.hold = Hold(self.path, locked=False)

    def follow(self) -> bool:
        """Update the paths if the directory was renamed; True if so. GoneError if it was deleted. Costs a stat."""
        if self.hold is None:
            return False
        try:
            place = self.hold.find(self.path)
        except GoneError:
            self.gone = True
            for file in self._appended:
                file.pending.clear()
            raise
        if place is self.path or place == self.path:  # the first is the usual case, and every update asks
            return False
        for file in self._appended:
            file.path = place / file.path.relative_to(self.path)
        self._name_files(place)
        return True

    def unlock(self) -> None:
        self._notes.close()
        self.hold = None

    def is_locked(self) -> bool:
        """Whether a living process holds the run, or may hold it."""
        return self.lock_state() is not False

    def lock_state(self) -> bool | None:
        """Whether a living process holds the run; None where the lock cannot be looked at."""
        try:
            # Non-blocking, because the file may be anything, such as a pipe without a writer.
            with open(os.open(self.path / LOCK, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), encoding="utf-8") as file:
                return not locks.take(file.fileno(), shared=True)
        except FileNotFoundError:
            return False
        except OSError:
            return None

    def refuse_links(self) -> None:
        """Refuse links: a run from a stranger could make us write to files outside it."""
        own = (*vars(self).values(), self.path / LOCK, self.checkpoints / "LATEST", self.checkpoints / "BEST")
        folders = (self.tensorboard, self.checkpoints, self.videos, self.crash, self.exports)
        for path in own:
            if not isinstance(path, Path) or path == self.path:
                continue
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
            if stat.S_ISLNK(mode):
                raise CheckpointError(f"{path} is a link; a run may write only to its own files")
            if not (stat.S_ISDIR(mode) if path in folders else stat.S_ISREG(mode)):  # writing to a pipe would hang
                raise CheckpointError(f"{path} is not a {'folder' if path in folders else 'plain file'}")

    def set_status(self, state: str, **facts: Any) -> None:
        """state: running, degraded (running, but the disk refuses files), done, interrupted or failed."""
        with suppress(OSError, GoneError):  # must not end the run
            self._write("status", {"state": state, **facts})

    def set_result(self, result: Mapping[str, object]) -> None:
        with suppress(OSError, GoneError):  # it is returned and printed anyway
            self._write("result", result)

    def _write(self, name: str, value: Mapping[str, object]) -> None:
        """Write a JSON file; try again if the directory was renamed meanwhile."""
        self.follow()
        try:
            write_json(getattr(self, name), value)
        except OSError:
            if not self.follow():
                raise
            write_json(getattr(self, name), value)

    def read_status(self) -> dict[str, Any]:
        """The run's last status. If it says running but has no process, it was interrupted (kill −9, power failure)."""
        status: dict[str, Any] = read_json(self.status) if os.path.lexists(self.status) else {"state": "unknown"}
        if status.get("state") in ("running", "degraded") and not self.is_locked():
            status["state"] = "interrupted"
        return status

    def note(self, line: str) -> None:
        """Add a line to `log.txt`; on a full disk it is written with the next one."""
        if not self.gone:
            self._notes.append(printable(f"{line}\n").encode())

    @property
    def _log_files(self) -> tuple[Path, ...]:
        """The logs that are appended to and, on a resume, cut back to the checkpoint."""
        return (self.metrics, self.timings, self.episodes)

    def open_logs(self, unwritten: dict[str, list[str]] | None = None) -> Logs:
        """Open the logs for appending. `unwritten`: rows from the checkpoint that a full disk had refused."""
        waiting = {name: [line.encode() for line in lines] for name, lines in (unwritten or {}).items()}

        def kept(log: Path) -> list[bytes]:
            return waiting.get(log.name, [])

        logs = Logs(
            JsonLines(self.metrics, kept(self.metrics)),
            JsonLines(self.timings, kept(self.timings)),
            LinesFile(self.episodes, kept(self.episodes)),
        )
        self._logs = {log.path.name: self.adopt(log) for log in logs}
        return logs

    def adopt(self, file: Appended) -> Appended:
        """Register a file of this directory that is appended to, so that it follows a rename of the directory."""
        self._appended.append(file)
        return file

    def log_state(self) -> LogState:
        """The state of the logs for a checkpoint: their sizes on disk, and rows not written yet."""
        for log in self._logs.values():
            log.flush()
        logs = [self._logs.get(path.name) or AppendedFile(path) for path in self._log_files]
        sizes = {log.path.name: log.size for log in logs}
        unwritten = {name: [line.decode() for line in log.pending] for name, log in self._logs.items() if log.pending}
        return {"sizes": sizes, "unwritten": unwritten}

    def open_handles(self) -> list[int]:
        """Copies of the logs' descriptors, for fsync by the caller, who must close them."""
        return [handle for log in self._logs.values() if (handle := log.copy_handle()) is not None]

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Drop the rows that were written after a checkpoint."""
        for log in self._log_files:
            wanted = sizes.get(log.name) or 0  # earlier versions had no episodes.csv
            try:
                size = log.stat().st_size if os.path.lexists(log) else 0
                if size < wanted:
                    raise CheckpointError(
                        f"{log} has {size} bytes, but the checkpoint expects {wanted}; rows are missing"
                    )
                if size > wanted:
                    os.truncate(log, wanted)  # not a link: see `refuse_links`
            except OSError as error:
                raise CheckpointError(f"{log} cannot be cut back to the checkpoint: {error.strerror}") from None


def _refuse_a_run(path: Path) -> None:
    """Refuse a directory with a run in it, or with other files that a run would overwrite."""
    if (path / "manifest.json").exists():
        raise UsageError(f"{path} already holds a run; choose another --run-dir, or remove it")
    if (path / LOCK).exists():  # a run that ended before it had a manifest
        return
    own = (place for place in vars(RunDirectory(path)).values() if isinstance(place, Path) and place != path)
    taken = next((place.name for place in own if os.path.lexists(place) and not os.path.isdir(place)), None)
    if taken is not None:
        raise UsageError(f"{path} has a {taken} that a run would overwrite; choose another --run-dir")


def shell_path(path: str | Path) -> str:
    """A path quoted for a shell, in a form that cannot be mistaken for a flag."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return quote(text)
    plain = set(range(32, 127)) - set(b"\\'")  # others are escaped, because a terminal may not show them
    return "$'" + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(text)) + "'"


def _make_new(base: Path) -> Path:
    """Make `base`, or `base-2`, `base-3`, … if another process was there first."""
    base.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        target = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with suppress(FileExistsError):
            target.mkdir()
            return target
    raise AssertionError


def escape(name: str, nothing: str = "env") -> str:
    """An env id as one path component: `ALE/Pong-v5` → `ALE_Pong-v5`, `my/file.py:Env` → `my_file.py_Env`."""
    return re.sub(r"[^\w.\-+ ]", "_", name).strip("._ ") or nothing


def _short(name: str, most: int = 120) -> str:
    """Shorten to `most` bytes: file names are limited to 255, and a run's name also has a time and a seed."""
    return name.encode()[:most].decode(errors="ignore")
