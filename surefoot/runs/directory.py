"""One training run on disk, and how to find it again."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from surefoot.errors import CheckpointError, GoneError, SurefootError, UsageError
from surefoot.runs.files import AppendedFile, JsonLines, read_json, read_json_lines, sweep, write_atomic, write_json
from surefoot.runs.hold import LOCK, Hold

ROOT = Path("runs")
Appended = TypeVar("Appended", bound=AppendedFile)


class RunDirectory:
    """Names of the files of a run; `docs/runs.md` says what is in each."""

    def __init__(self, path: Path) -> None:
        self._name_files(path)
        self._logs: dict[str, JsonLines] = {}
        self._notes = AppendedFile(self.log)
        self._appended: list[AppendedFile] = [self._notes]  # that are open, or may be opened yet
        self.hold: Hold | None = None
        self.gone = False  # deleted while it was in use

    def _name_files(self, path: Path) -> None:
        self.path = path
        self.config, self.manifest = path / "config.toml", path / "manifest.json"
        self.metrics, self.timings = path / "metrics.jsonl", path / "timings.jsonl"
        self.tensorboard, self.checkpoints = path / "tensorboard", path / "checkpoints"
        self.status, self.result, self.log = path / "status.json", path / "result.json", path / "log.txt"
        self.videos, self.crash = path / "videos", path / "crash"

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
        self.hold = Hold(self.path)
        for folder in (self.path, self.checkpoints):
            sweep(folder)

    def watch(self) -> None:
        """Find it again after a rename (`follow`), without holding it against anybody."""
        self.hold = Hold(self.path, locked=False)

    def follow(self) -> bool:
        """Whether it was renamed; then its files have their new names. GoneError where it was deleted. Costs a stat."""
        if self.hold is None:
            return False
        try:
            place = self.hold.find(self.path)
        except GoneError:
            self.gone = True
            for file in self._appended:
                file.pending.clear()
            raise
        if place == self.path:
            return False
        for file in self._appended:
            file.path = place / file.path.relative_to(self.path)
        self._name_files(place)
        return True

    def unlock(self) -> None:
        self._notes.close()
        self.hold = None

    def is_locked(self) -> bool:
        """Whether a living process holds the run."""
        try:
            with open(self.path / LOCK) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def refuse_links(self) -> None:
        """A run writes to its own files; one of a stranger may have links there to somebody else's."""
        own = (*vars(self).values(), self.path / LOCK, self.checkpoints / "LATEST", self.checkpoints / "BEST")
        for path in own:
            if isinstance(path, Path) and path != self.path and path.is_symlink():
                raise CheckpointError(f"{path} is a link; a run is only resumed or filmed into files of its own")

    def set_status(self, state: str, **facts: Any) -> None:
        """state: running, degraded (running, but the disk refuses files), done, interrupted or failed."""
        with suppress(OSError, GoneError):  # the run itself is worth more than its label
            self._write("status", {"state": state, **facts})

    def set_result(self, result: dict[str, Any]) -> None:
        with suppress(OSError, GoneError):  # it is returned and printed all the same
            self._write("result", result)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        """One of its JSON files; once more if it was renamed in the middle of that."""
        self.follow()
        try:
            write_json(getattr(self, name), value)
        except OSError:
            if not self.follow():
                raise
            write_json(getattr(self, name), value)

    def read_status(self) -> dict[str, Any]:
        """What the run said last; one that says it is running but has no process was interrupted (kill −9, power)."""
        status: dict[str, Any] = read_json(self.status) if self.status.exists() else {"state": "unknown"}
        if status.get("state") in ("running", "degraded") and not self.is_locked():
            status["state"] = "interrupted"
        return status

    def note(self, line: str) -> None:
        """A line of `log.txt`; on a full disk it waits for the next one."""
        if not self.gone:
            self._notes.append(f"{line}\n".encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(read_json_lines(self.metrics))

    def open_logs(self, unwritten: dict[str, list[str]] | None = None) -> tuple[JsonLines, JsonLines]:
        """(metrics, timings), to append to. `unwritten`: rows that a full disk had refused, from the checkpoint."""
        waiting = {name: [line.encode() for line in lines] for name, lines in (unwritten or {}).items()}
        for log in (self.metrics, self.timings):
            self._logs[log.name] = self.adopt(JsonLines(log, waiting.get(log.name, ())))
        return self._logs[self.metrics.name], self._logs[self.timings.name]

    def adopt(self, file: Appended) -> Appended:
        """A file of this directory that somebody appends to: it moves along when the directory is renamed."""
        self._appended.append(file)
        return file

    def log_state(self) -> dict[str, Any]:
        """What a checkpoint remembers of the logs: their bytes on the disk, and rows that are not there yet."""
        for log in self._logs.values():
            log.flush()
        logs = [self._logs.get(path.name) or AppendedFile(path) for path in (self.metrics, self.timings)]
        sizes = {log.path.name: log.size for log in logs}
        unwritten = {name: [line.decode() for line in log.pending] for name, log in self._logs.items() if log.pending}
        return {"sizes": sizes, "unwritten": unwritten}

    def open_handles(self) -> list[int]:
        """Copies of the logs' descriptors, for whoever waits until the disk has their rows. To be closed."""
        return [handle for log in self._logs.values() if (handle := log.copy_handle()) is not None]

    def cut_logs(self, sizes: dict[str, int]) -> None:
        """Drop the rows that were written after a checkpoint."""
        for log in (self.metrics, self.timings):
            size, wanted = log.stat().st_size if log.exists() else 0, sizes[log.name]
            if size < wanted:
                raise CheckpointError(f"{log} has {size} bytes, but the checkpoint knows of {wanted}; rows are missing")
            if log.exists():
                os.truncate(log, wanted)  # no link: `refuse_links`


def shell_path(path: str | Path) -> str:
    """A path as a shell takes it and no parser for a flag."""
    return quote(f"./{path}" if str(path).startswith("-") else str(path))


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


def list_runs(root: Path = ROOT) -> list[RunDirectory]:
    """Every run below `root`, oldest first."""
    found = [RunDirectory(manifest.parent) for manifest in root.glob("**/manifest.json")]
    return sorted(found, key=lambda run: (run.manifest.stat().st_mtime, str(run.path)))


def find_run(name: str | Path, root: Path = ROOT) -> RunDirectory:
    """A run by path, by `latest`, or by a unique prefix of its path below `root` or of its own name."""
    path = Path(name)
    if (path / "manifest.json").exists():
        return RunDirectory(path)
    runs = list_runs(root)
    if not runs:
        raise UsageError(f"there is no run '{name}', and none below {root}/; train one: surefoot train CartPole-v1")
    if str(name) == "latest":
        return runs[-1]
    wanted = str(name).rstrip("/")

    def names(run: RunDirectory) -> tuple[str, ...]:
        return (run.path.name, str(run.path.relative_to(root)), str(run.path))

    exact = [run for run in runs if wanted in names(run)]
    matching = exact or [run for run in runs if any(n.startswith(wanted) for n in names(run))]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = "\n  ".join(str(run.path) for run in matching[-5:])
        raise UsageError(f"'{name}' fits {len(matching)} runs; name one of them:\n  {listed}")
    raise UsageError(f"there is no run '{name}'; `surefoot list runs` shows them (or use 'latest')")


def describe(run: RunDirectory) -> dict[str, Any]:
    """What `surefoot list runs` shows of a run."""
    try:
        manifest, status = read_json(run.manifest), run.read_status()
        return _description(run, manifest, status, run.read_metrics())
    except (SurefootError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return {"run": str(run.path), "state": "unreadable"}


def _description(
    run: RunDirectory, manifest: dict[str, Any], status: dict[str, Any], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    evaluated = [x for x in (*(row.get("eval_return") for row in rows), status.get("eval_return")) if x is not None]
    trained = [x for x in (row.get("episode_return") for row in rows) if x is not None]
    return {
        "run": str(run.path),
        "env": manifest.get("env"),
        "algo": manifest.get("algo"),
        "seed": manifest.get("seed"),
        "steps": max(status.get("step") or 0, rows[-1]["step"] if rows else 0),
        "return": status.get("eval_return"),
        "best": max(evaluated or trained, default=None),
        "state": status.get("state"),
    }
