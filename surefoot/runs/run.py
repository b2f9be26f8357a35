"""Reads a run, finished or in progress: settings, metrics, checkpoints and state. Imports no torch."""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from surefoot import notebook
from surefoot.errors import CheckpointError, SurefootError, UsageError
from surefoot.runs.checkpoints import BEST, LATEST, pointed, steps_of
from surefoot.runs.directory import RunDirectory
from surefoot.runs.episodes import EpisodeRow, monitor_text, read_episodes
from surefoot.runs.files import (
    line_start,
    read_json,
    read_json_lines,
    read_json_lines_from,
    read_lines,
    read_toml,
    write_errors_told,
    write_output,
)
from surefoot.runs.index import find_run, started
from surefoot.runs.life import Life, read_life
from surefoot.runs.manifest import other_schema
from surefoot.text import one_line

if TYPE_CHECKING:
    from types import ModuleType

    import surefoot

Logs = Literal["metrics", "timings", "episodes"]
WARNING = re.compile(r"step (\d+): (.*)")  # a line of log.txt


@dataclass(frozen=True)
class Checkpoints:
    """The steps at which a run has checkpoints, and which of them are the newest and the best by evaluation."""

    steps: tuple[int, ...]
    latest: int | None
    best: int | None


class Run:
    """A run on disk, read-only: `surefoot.Run("runs/…")`, a unique prefix of its name, or `"latest"`.

    Every access reads the files again, so a run in progress shows what it has written so far.
    """

    def __init__(self, run: RunDirectory | str | Path = "latest") -> None:
        self.directory = run if isinstance(run, RunDirectory) else find_run(run)

    @property
    def path(self) -> Path:
        return self.directory.path

    def __repr__(self) -> str:
        known = self._facts()
        return f"Run({str(self.path)!r}{''.join(f', {name} {value}' for name, value in known.items())})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return notebook.table(str(self.path), self._facts())

    def _facts(self) -> dict[str, str]:
        """The key facts of a run, as far as its files can be read."""
        facts: dict[str, str] = {}
        with suppress(SurefootError, OSError, ValueError):
            config = self.config
            shown = {name: config[name] for name in ("name", "env", "algo", "seed") if name in config}
            facts |= {name: one_line(str(value)) for name, value in shown.items() if (name, value) != ("name", "none")}
        with suppress(SurefootError, OSError, ValueError):
            status = self.directory.read_status()
            facts["state"] = one_line(str(status.get("state")))
            for name, title, kind in (("step", "step", ","), ("eval_return", "return", ",.2f")):
                if isinstance(value := status.get(name), (int, float)):
                    facts[title] = format(value, kind)
        return facts

    @property
    def config(self) -> dict[str, Any]:
        """The effective settings."""
        return read_toml(self.directory.config)

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, machine, command, engine."""
        return read_json(self.directory.manifest)

    def refuse_other_schema(self) -> None:
        """CheckpointError if the files were written in a format that this version does not know."""
        if (who := other_schema(self.manifest)) is not None:
            raise CheckpointError(f"{self.path} was {who}")

    @property
    def name(self) -> str | None:
        """The `--name` of the run."""
        found = self.manifest.get("name")
        return found if isinstance(found, str) else None

    @property
    def tags(self) -> tuple[str, ...]:
        """The `--tags` of the run."""
        found = self.manifest.get("tags")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def status(self) -> dict[str, Any]:
        """`state` (running, degraded, done, interrupted or failed), `step`, …, and whether it is still going on.

        `life` is running, finished, stopped, crashed (also: killed) or unknown, `alive` whether it is running, and
        `heartbeat` when it last wrote anything, in seconds since 1970 (`surefoot.runs.life`).
        """
        life = self.life
        return {
            **self.directory.read_status(),
            "alive": life.alive,
            "life": life.state,
            "heartbeat": life.heartbeat,
        }

    @property
    def life(self) -> Life:
        """Whether it is still going on, and when it last wrote anything."""
        return read_life(self.directory)

    @property
    def result(self) -> dict[str, Any]:
        """The summary that `--json` prints: steps, seconds, the final evaluation."""
        return read_json(self.directory.result)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`."""
        return list(read_json_lines(self.directory.metrics))

    def metrics_since(self, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """(rows, offset): the rows from this byte of `metrics.jsonl` on, and the offset for the next call.

        Only new rows are read. If a resume has cut the log back since, all rows are returned again.
        """
        start = line_start(self.directory.metrics, offset)
        found = list(read_json_lines_from(self.directory.metrics, start))
        return [row for _, row in found], found[-1][0] if found else start

    @property
    def timings(self) -> list[dict[str, Any]]:
        """The rows of `timings.jsonl`: wall times at the steps of `metrics`."""
        return list(read_json_lines(self.directory.timings))

    @property
    def episodes(self) -> list[EpisodeRow]:
        """The rows of `episodes.csv`: one per training episode. Empty for runs of versions that did not write it."""
        return list(read_episodes(self.directory.episodes))

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """Warnings: `step` and `message`; also `name` (see docs/metrics.md) once the run has a result."""
        with suppress(SurefootError):
            found = self.result.get("warnings")
            if isinstance(found, list):
                return found
        lines = (line.decode(errors="replace").rstrip("\n") for _, line in read_lines(self.directory.log))
        said = (match for line in lines if (match := WARNING.fullmatch(line)))
        return [{"name": None, "step": int(match[1]), "message": match[2]} for match in said]

    @property
    def checkpoints(self) -> Checkpoints:
        """Steps with a checkpoint; the latest and the best of them."""
        root = self.directory.checkpoints
        latest, best = (pointed(root, pointer) for pointer in (LATEST, BEST))
        return Checkpoints(
            tuple(int(folder.name) for folder in steps_of(root)),
            None if latest is None else int(latest.name),
            None if best is None else int(best.name),
        )

    @property
    def videos(self) -> list[Path]:
        """The mp4 files in its directory, by step."""
        found = self.directory.videos.glob("*.mp4")
        return sorted(found, key=lambda file: (int((re.match(r"\d{1,18}", file.name) or ["0"])[0]), file.name))

    def frame(self, log: Logs = "metrics") -> Any:
        """A pandas DataFrame of the metrics (or the timings, or the episodes): one column each, numbers as floats."""
        if find_spec("pandas") is None:
            raise UsageError("run.frame() needs pandas, which is not installed; pip install pandas (or use to_csv)")
        pandas: ModuleType = import_module("pandas")
        return pandas.DataFrame(self._rows(log)).astype(float)

    def to_csv(self, path: str | Path, log: Logs = "metrics") -> Path:
        """Write the metrics (or the timings, or the episodes) to a CSV file; what a row lacks is an empty cell."""
        target, text = Path(path), self.csv(log)
        with write_errors_told(target):
            write_output(target, text)
        return target

    def to_monitor(self, folder: str | Path) -> Path:
        """Write the training episodes as `0.monitor.csv`, for tools that read Stable-Baselines3's Monitor files."""
        target, manifest = Path(folder) / "0.monitor.csv", self.manifest
        try:
            text = monitor_text(self.episodes, started(manifest.get("created"), 0.0), str(manifest.get("env")))
        except KeyError as error:
            raise CheckpointError(f"{self.directory.episodes} has no column {error}") from None
        with write_errors_told(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_output(target, text)
        return target

    def csv(self, log: Logs = "metrics") -> str:
        """The text that `to_csv` writes."""
        rows = self._rows(log)
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _rows(self, log: Logs) -> list[dict[str, Any]]:
        if log not in ("metrics", "timings", "episodes"):
            raise UsageError(f"there is no log {log!r}; name one of metrics, timings, episodes")
        rows: list[dict[str, Any]] = getattr(self, log)
        return rows

    def video(self, out: str | Path | None = None, **how: Any) -> surefoot.Recording:
        """See `surefoot.video`."""
        import surefoot

        return surefoot.video(self, out, **how)
