"""One training run on disk."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from shlex import quote
from time import sleep
from typing import Any

from surefoot.errors import BusyError, CheckpointError, UsageError
from surefoot.runs.files import AppendedFile, JsonLines, read_json, read_json_lines, sweep, write_atomic, write_json
from surefoot.schema import Items, Record, Table, Text, Whole
from surefoot.text import printable

ROOT = Path("runs")
LOGS = Record(  # what a checkpoint remembers of the logs
    sizes=Record({"metrics.jsonl": Whole(), "timings.jsonl": Whole()}), unwritten=Table(Items(Text()))
)


class RunDirectory:
    """Names of the files of a run; `docs/runs.md` says what is in each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.manifest = path / "config.toml", path / "manifest.json"
        self.metrics, self.timings = path / "metrics.jsonl", path / "timings.jsonl"
        self.tensorboard, self.checkpoints = path / "tensorboard", path / "checkpoints"
        self.status, self.result, self.log = path / "status.json", path / "result.json", path / "log.txt"
        self.videos, self.crash = path / "videos", path / "crash"
        self._logs: dict[str, JsonLines] = {}
        self._notes = AppendedFile(self.log)

    @classmethod
    def create(cls, path: str | Path | None, env: str, algo: str, seed: int) -> RunDirectory:
        """A new, empty directory: the given one, or `runs/<env>/<algo>/<time>-s<seed>`. Fails before any work."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        target = ROOT / escape(env) / escape(algo) / f"{stamp}-s{seed}" if path is None else Path(path)
        try:
            if path is None:
                target = _make_new(target)
            elif (target / "manifest.json").exists():
                raise UsageError(f"{target} already holds a run; choose another --run-dir, or remove it")
            target.mkdir(parents=True, exist_ok=True)
            run = cls(target)
            run.checkpoints.mkdir(exist_ok=True)
            write_atomic(run.log, "")
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {target}: {error.strerror}; choose another --run-dir"
            ) from None
        return run

    @staticmethod
    def check_place(path: str | Path | None) -> None:
        """Fail before any env is made where the directory could not be written later."""
        from tempfile import mkdtemp  # not above: it costs milliseconds of every `--help`

        target = ROOT if path is None else Path(path)
        try:
            if path is not None and (target / "manifest.json").exists():
                raise UsageError(f"{target} already holds a run; choose another --run-dir, or remove it")
            existing = next(place for place in (target, *target.absolute().parents) if place.exists())
            os.rmdir(mkdtemp(prefix=".tmp-", dir=existing))
        except OSError as error:
            raise UsageError(
                f"cannot write the run directory {target}: {error.strerror}; choose another --run-dir"
            ) from None

    def lock(self) -> None:
        """Hold the run for this process until it ends, however it ends; BusyError if another one has it."""
        try:
            self._lock = open(self.path / ".lock", "a+", errors="replace")  # noqa: SIM115 (held open: closing it frees the run)
        except OSError as error:
            raise UsageError(f"cannot write to the run {self.path}: {error.strerror}") from None
        for patience in (0.05, 0.05, 0.05, 0.0):  # somebody who only looks (is_locked) holds it for microseconds
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                sleep(patience)
        else:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise BusyError(f"{self.path} is in use by {holder}; wait for it, or train into another --run-dir")
        with suppress(OSError):  # a full disk keeps nobody from holding the lock
            self._lock.truncate(0)
            self._lock.write(f"pid {os.getpid()} on {socket.gethostname()}")
            self._lock.flush()

        for folder in (self.path, self.checkpoints):
            sweep(folder)

    def unlock(self) -> None:
        self._notes.close()
        self._lock.close()

    def is_locked(self) -> bool:
        """Whether a living process holds the run."""
        try:
            # Not blocking: what lies there may be anything, such as a pipe that nobody writes to.
            with open(os.open(self.path / ".lock", os.O_RDONLY | os.O_NONBLOCK)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def refuse_links(self) -> None:
        """A run writes to its own files; one of a stranger may have links there to somebody else's."""
        own = (*vars(self).values(), self.path / ".lock", self.checkpoints / "LATEST", self.checkpoints / "BEST")
        folders = (self.tensorboard, self.checkpoints, self.videos, self.crash)
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
                raise CheckpointError(f"{path} is a link; a run is only resumed or filmed into files of its own")
            if not (stat.S_ISDIR(mode) if path in folders else stat.S_ISREG(mode)):  # to write to a pipe would wait
                raise CheckpointError(f"{path} is not a {'folder' if path in folders else 'plain file'}")

    def set_status(self, state: str, **facts: Any) -> None:
        """state: running, degraded (running, but the disk refuses files), done, interrupted or failed."""
        with suppress(OSError):  # the run itself is worth more than its label
            write_json(self.status, {"state": state, **facts})

    def read_status(self) -> dict[str, Any]:
        """What the run said last; one that says it is running but has no process was interrupted (kill −9, power)."""
        status: dict[str, Any] = read_json(self.status) if os.path.lexists(self.status) else {"state": "unknown"}
        if status.get("state") in ("running", "degraded") and not self.is_locked():
            status["state"] = "interrupted"
        return status

    def note(self, line: str) -> None:
        """A line of `log.txt`; on a full disk it waits for the next one."""
        self._notes.append(printable(f"{line}\n").encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(read_json_lines(self.metrics))

    def open_logs(self, unwritten: dict[str, list[str]] | None = None) -> tuple[JsonLines, JsonLines]:
        """(metrics, timings), to append to. `unwritten`: rows that a full disk had refused, from the checkpoint."""
        waiting = {name: [line.encode() for line in lines] for name, lines in (unwritten or {}).items()}
        for log in (self.metrics, self.timings):
            self._logs[log.name] = JsonLines(log, waiting.get(log.name, ()))
        return self._logs[self.metrics.name], self._logs[self.timings.name]

    def log_state(self) -> dict[str, Any]:
        """What a checkpoint remembers of the logs: their bytes on the disk, and rows that are not there yet."""
        for log in self._logs.values():
            log.flush()
        sizes = {log.name: log.stat().st_size if log.exists() else 0 for log in (self.metrics, self.timings)}
        unwritten = {name: [line.decode() for line in log.pending] for name, log in self._logs.items() if log.pending}
        return {"sizes": sizes, "unwritten": unwritten}

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Drop the rows that were written after a checkpoint."""
        for log in (self.metrics, self.timings):
            wanted = sizes[log.name]
            try:
                size = log.stat().st_size if os.path.lexists(log) else 0
                if size < wanted:
                    raise CheckpointError(
                        f"{log} has {size} bytes, but the checkpoint knows of {wanted}; rows are missing"
                    )
                if size > wanted:
                    os.truncate(log, wanted)  # no link: `refuse_links`
            except OSError as error:
                raise CheckpointError(f"{log} cannot be cut back to the checkpoint: {error.strerror}") from None


def shell_path(path: str | Path) -> str:
    """A path as a shell takes it and no parser for a flag."""
    text = f"./{path}" if str(path).startswith("-") else str(path)
    if text.isprintable():
        return quote(text)
    plain = set(range(32, 127)) - set(b"\\'")  # the others by number: a terminal would not show them as they are
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


def escape(name: str) -> str:
    """An env id as one path component: `ALE/Pong-v5` → `ALE_Pong-v5`, `my/file.py:Env` → `my_file.py_Env`."""
    return re.sub(r"[^\w.\-+ ]", "_", name).strip("._ ") or "env"
