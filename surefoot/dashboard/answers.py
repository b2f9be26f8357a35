"""Answers about chosen runs: their metrics, curves, settings, files, advice and a comparison."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from surefoot.analysis.curves import Curve, decimate
from surefoot.analysis.diagnosis import diagnose
from surefoot.analysis.groups import as_typed
from surefoot.analysis.statistics import Array
from surefoot.dashboard.compare import compared
from surefoot.dashboard.curves import AXES, Columns, read_curve
from surefoot.dashboard.groups import MIDDLES, apart, grouped, labels, merged, short_labels, smoothed
from surefoot.dashboard.instruments import described
from surefoot.dashboard.replies import Reply
from surefoot.errors import SurefootError, did_you_mean
from surefoot.runs import Run, RunDirectory
from surefoot.runs.catalog import Entry
from surefoot.runs.files import read_regular

POINTS = 800  # per curve: about one per pixel
MOST_DIAGNOSED = 2**22  # bytes of metrics that are read for a diagnosis while the page waits
Json = dict[str, object]


class Answers:
    def __init__(self) -> None:
        self._columns = Columns()

    def paths(self) -> dict[str, Callable[[list[Entry], Request], Response]]:
        return {
            "/api/metrics": self.metrics,
            "/api/apart": self.apart,
            "/api/curves": self.curves,
            "/api/compare": self.compare,
            "/api/run": self.run,
            "/api/config": self.config,
            "/download/metrics.csv": self.metrics_csv,
            "/download/config.toml": self.config_toml,
            "/download/manifest.json": self.manifest_json,
        }

    def metrics(self, entries: list[Entry], request: Request) -> Response:
        """The metrics that any of the runs has, and the label of each group (of each run, if seeds are not grouped)."""
        called = labels(_groups(entries, request))
        legend = [{"key": key, "label": label} for key, label in called.items()]
        return Reply({"metrics": described(self._names(entries)), "groups": legend})

    def apart(self, entries: list[Entry], request: Request) -> Response:
        """By run: the settings that set it apart from the others of its env and algorithm, as text."""
        return Reply({"apart": apart(entries)})

    def _names(self, entries: Sequence[Entry]) -> list[str]:
        found = (name for entry in entries for name in self._columns.names(entry.directory))
        return list(dict.fromkeys(found))

    def curves(self, entries: list[Entry], request: Request) -> Response:
        """A metric of the runs. If `group` is seeds, runs that differ only in their seeds are one curve."""
        asked = request.query_params
        metric, axis = asked.get("metric", ""), asked.get("x", "step")
        middle, share = asked.get("middle", "iqm"), _number(asked.get("smooth"), 0.0)
        if axis not in AXES or middle not in MIDDLES or share is None or not 0 <= share <= 1:
            raise HTTPException(
                400, f"x is one of {', '.join(AXES)}, middle one of {', '.join(MIDDLES)}, smooth 0 to 1"
            )
        low, high = _number(asked.get("from")), _number(asked.get("to"))
        span = None if low is None or high is None else (low, high)
        groups = _groups(entries, request)
        read = {entry.id: read_curve(self._columns, entry.directory, metric, axis, span) for entry in entries}
        if not any(len(curve.x) for curve, _ in read.values()) and span is None:
            self._require_metric(metric, entries)
        called, curves = labels(groups), []
        for key, group in groups.items():
            found = [read[entry.id] for entry in group]
            facts: Json = {"key": key, "label": called[key], "runs": [entry.id for entry in group]}
            facts |= {"sampled": any(sampled for _, sampled in found)}
            curves.append(facts | _drawn([curve for curve, _ in found], middle, share))
        return Reply({"metric": metric, "x": axis, "curves": curves})

    def _require_metric(self, metric: str, entries: Sequence[Entry]) -> None:
        names = self._names(entries)
        if names and metric not in names:
            raise HTTPException(404, f"no chosen run has a metric '{metric}'{did_you_mean(metric, names)}")

    def compare(self, entries: list[Entry], request: Request) -> Response:
        """Each group's scores at the end of training, with 95 % intervals, and which group is better."""
        metric = request.query_params.get("metric", "episode_return")
        self._require_metric(metric, entries)
        groups = grouped(entries)
        curves = [
            [read_curve(self._columns, e.directory, metric, "step", None)[0] for e in of] for of in groups.values()
        ]
        return Reply(compared(groups, curves, metric))

    def run(self, entries: list[Entry], request: Request) -> Response:
        """What the page shows of one run: manifest, checkpoints, videos, diagnosis, result."""
        entry = entries[0]
        run = Run(_checked(entry))
        checkpoints = run.checkpoints
        facts: Json = {
            "path": str(entry.directory.path),
            "manifest": run.manifest,
            "checkpoints": {"steps": checkpoints.steps, "latest": checkpoints.latest, "best": checkpoints.best},
            "videos": _videos(entry),
            "diagnosis": _diagnosis(entry, run),
            "result": _result(run),
        }
        return Reply(facts)

    def config(self, entries: list[Entry], request: Request) -> Response:
        """All settings, with a column per group of runs. `different`: settings in which any two runs differ."""
        columns: list[dict[str, list[str]]] = []
        groups = grouped(entries)
        for group in groups.values():
            columns.append({})
            for entry in group:
                for name, value in Run(_checked(entry)).config.items():
                    said = columns[-1].setdefault(name, [])
                    said += [shown] if (shown := as_typed(value)) not in said else []
        names = list(dict.fromkeys(name for column in columns for name in column))
        table = {name: [", ".join(column.get(name, ["–"])) for column in columns] for name in names}
        many = [name for name in names if any(len(column.get(name, [])) > 1 for column in columns)]
        different = [name for name, values in table.items() if len(set(values)) > 1 or name in many]
        heads = [{"key": key, "label": label} for key, label in short_labels(groups).items()]
        return Reply({"groups": heads, "settings": table, "different": different})

    def metrics_csv(self, entries: list[Entry], request: Request) -> Response:
        text = Run(_checked(entries[0])).csv()
        return _download(text, entries[0], "metrics.csv", "text/csv")

    def config_toml(self, entries: list[Entry], request: Request) -> Response:
        text = read_regular(_checked(entries[0]).config, 2**20).decode(errors="replace")
        return _download(text, entries[0], "config.toml", "text/plain")

    def manifest_json(self, entries: list[Entry], request: Request) -> Response:
        text = read_regular(_checked(entries[0]).manifest, 2**24).decode(errors="replace")
        return _download(text, entries[0], "manifest.json", "application/json")


def _groups(entries: Sequence[Entry], request: Request) -> Mapping[str, Sequence[Entry]]:
    if request.query_params.get("group", "seeds") == "seeds":
        return grouped(entries)
    return {entry.id: [entry] for entry in entries}


def _drawn(curves: Sequence[Curve], middle: str, share: float) -> Json:
    """One line of a chart. A single run has its raw points (`y`) and, if asked for, a smoothed line."""
    if len(curves) > 1:
        x, y, low, high = merged(curves, middle, share, POINTS // 2)
        return {"x": _list(x), "y": _list(y), "low": _list(low), "high": _list(high)}
    (curve,) = curves
    kept = decimate(curve, POINTS // 4)
    facts: Json = {"x": _list(curve.x[kept]), "y": _list(curve.y[kept])}
    if share > 0:
        calm = smoothed(curve, share)
        kept = decimate(calm, POINTS // 4)
        facts |= {"smooth_x": _list(calm.x[kept]), "smooth_y": _list(calm.y[kept])}
    return facts


def _list(values: Array) -> list[float]:
    """Seven digits are more than a screen shows."""
    found: list[float] = np.char.mod("%.7g", values).astype(np.float64).tolist() if len(values) else []
    return found


def _number(text: str | None, otherwise: float | None = None) -> float | None:
    if text is None:
        return otherwise
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise HTTPException(400, f"'{text[:40]}' is not a number")
    return number


def _checked(entry: Entry) -> RunDirectory:
    """The run's directory, if none of its files is a link."""
    entry.directory.refuse_links()
    return entry.directory


def plain_file(entry: Entry, *parts: str) -> Path:
    """The path of a run's file; HTTPException if it is missing, or if it or one of its folders is a link."""
    path = entry.directory.path
    for part in parts:
        path = path / part
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError):  # gone, or not a file's name
            raise HTTPException(404, f"{'/'.join(parts)} does not exist (any more)") from None
        if not (stat.S_ISREG(mode) if part == parts[-1] else stat.S_ISDIR(mode)):
            raise HTTPException(403, f"{'/'.join(parts)} is not a plain file of the run")
    return path


def _diagnosis(entry: Entry, run: Run) -> list[dict[str, str]]:
    """What is wrong with the run, the likeliest cause first. If the log is very long, only the run's own warnings."""
    if entry.size > MOST_DIAGNOSED:
        return [{"since": f"step {said.get('step')}", "text": str(said.get("message"))} for said in run.warnings[-5:]]
    return [{"since": f"update {advice.since_update}", "text": advice.text} for advice in diagnose(run)]


def _videos(entry: Entry) -> list[Json]:
    found: list[Json] = []
    for file in Run(entry.directory).videos:
        try:
            status = os.lstat(file)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append({"file": file.name, "bytes": status.st_size, "time": status.st_mtime})
    return found


def _result(run: Run) -> Json | None:
    try:
        return run.result
    except SurefootError:
        return None


def _download(text: str, entry: Entry, name: str, kind: str) -> Response:
    called = quote(f"{entry.id.replace('/', '_')}-{name}", safe="")
    named = {"content-disposition": f"attachment; filename*=UTF-8''{called}"}
    return PlainTextResponse(text.encode(errors="replace"), media_type=kind, headers=named)
