"""The runs of a grid: each resolved and checked as in `surefoot train`, with a command and a directory of its own."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from surefoot.envs.backends import backend_of
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.directory import escape
from surefoot.sweep.grid import Grid
from surefoot.training.config.resolve import TrainConfig, resolve
from surefoot.training.config.toml_files import to_toml
from surefoot.training.config.unused import check_timeout
from surefoot.training.life.trust import Trust, named_code, require_trust, require_word
from surefoot.user_code import names_code

LABELS = ("name", "tags")  # settings that do not change what is trained
LONGEST = 100  # characters of a directory's name that are settings
THREADS = 1  # per run by default: the runs share the cores


@dataclass(frozen=True)
class Point:
    """One combination of a grid, for any seed."""

    config: TrainConfig
    given: tuple[str, ...]  # the settings that the grid names
    preset: str

    @cached_property
    def values(self) -> dict[str, object]:
        """The settings that the grid names, as they were resolved."""
        flat = self.config.flat()
        return {name: flat[name] for name in sorted(self.given)}

    @cached_property
    def label(self) -> str:
        """`learning_rate=0.0001`: the given settings as a file name, the same however they were typed."""
        shown = {name: value for name, value in self.values.items() if name not in LABELS}
        if self.preset != "auto":
            shown["preset"] = self.preset
        text = ",".join(f"{name}={as_text(value)}" for name, value in sorted(shown.items()))
        safe = re.sub(r"[^\w.\-+=,]", "_", text)
        if safe != text or len(text) > LONGEST:  # the digest keeps names apart that look the same
            safe = f"{safe[:LONGEST].rstrip('._ ')}-{sha256(text.encode(errors='replace')).hexdigest()[:8]}"
        return safe

    @cached_property
    def name(self) -> str:
        """`CartPole-v1/ppo/learning_rate=0.0001`."""
        return "/".join(filter(None, (escape(self.config.env.env), escape(self.config.run.algo), self.label)))

    @cached_property
    def written(self) -> Mapping[str, object]:
        """The settings as a run's `config.toml` has them."""
        return tomllib.loads(to_toml(self.config))

    @cached_property
    def key(self) -> str:
        """Equal for points that are the same run."""
        return json.dumps(self.config.flat(), sort_keys=True, default=str)

    def describe(self) -> str:
        given = ", ".join(f"{name}={as_text(value)}" for name, value in self.values.items())
        return f"{self.config.run.algo} on {self.config.env.env}" + (f" with {given}" if given else "")


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    point: Point
    seed: int

    @property
    def name(self) -> str:
        """Its directory below the sweep's folder: `CartPole-v1/ppo/learning_rate=0.0001-s3`."""
        named = self.point.name.count("/") > 1
        return f"{self.point.name}{'-' if named else '/'}s{self.seed}"

    @property
    def total_steps(self) -> int:
        return self.point.config.run.total_steps

    @property
    def words(self) -> list[str]:
        """What to type after `surefoot` to train it alone, without its directory."""
        point = self.point
        env = point.config.env.env
        words = ["train", env, f"--algo={point.config.run.algo}", f"--seed={self.seed}"]
        if point.preset != "auto":
            words.append(f"--preset={point.preset}")
        if "threads" not in point.values:
            words.append(f"--threads={THREADS}")
        return words + [word for name, value in point.values.items() for word in as_flags(name, value)]

    def unlike(self, config: Mapping[str, object]) -> list[str]:
        """How an existing run's `config.toml` differs from this one, apart from settings that a run decides itself."""
        wanted = {**self.point.written, "seed": self.seed}
        return [
            f"{name}={as_text(config[name])} instead of {as_text(value)}"
            for name, value in wanted.items()
            if name in config and value not in ("auto", "none", config[name]) and name not in (*LABELS, "init_from")
        ]


def as_text(value: object) -> str:
    """A setting as part of a file name or a message."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return "+".join(map(str, value)) or "nothing"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return "none" if value is None else str(value)


def as_flags(name: str, value: object) -> list[str]:
    """A resolved setting as words of a command line that resolve to it again."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, (tuple, list)):
        return [flag, *map(str, value)]
    if isinstance(value, dict):
        return [f"{flag}={json.dumps(value)}"]
    return [f"{flag}={'none' if value is None else value}"]


@dataclass(frozen=True)
class Plan:
    """Every run of a sweep in starting order: the first seed of everything, then the second, and so on."""

    runs: tuple[Planned, ...]
    notes: tuple[str, ...] = ()  # points that are the same run


def expand(grids: Iterable[Grid], *, source: str | None = None, trust: Trust = False) -> Plan:
    """All runs, each resolved; UsageError for the first that cannot be.

    `source`: the file that the grids come from; code that it names needs trust, unlike code that is typed.
    """
    points: dict[str, Point] = {}
    runs: dict[tuple[str, int], Planned] = {}
    notes: list[str] = []
    for grid in grids:
        in_grid: dict[str, Point] = {}
        for point in _points(grid, source, trust):
            same = in_grid.setdefault(point.key, point)
            if same is not point:
                notes.append(f"{same.describe()} is given twice" + _otherwise(same, point) + "; it runs once")
        for key, point in in_grid.items():
            first = points.setdefault(key, point)
            runs |= {(key, seed): Planned(first, seed) for seed in grid.seeds if (key, seed) not in runs}
    ordered = sorted(runs.values(), key=lambda run: run.seed)
    _check_names(ordered)
    return Plan(tuple(ordered), tuple(notes))


def check_envs(runs: Iterable[Planned]) -> None:
    """Make every env once, so that a wrong name is an error before the first run. The user's code is not run yet."""
    for config in {repr(run.point.config.env): run.point.config for run in runs}.values():
        if not named_code(config):
            backend_of(config.env.env).spaces(config.env)


def _otherwise(one: Point, other: Point) -> str:
    return "" if one.describe() == other.describe() else f" (also as {other.describe()})"


def _points(grid: Grid, source: str | None, trust: Trust) -> Iterable[Point]:
    for env in grid.envs:
        for algo in grid.algos:
            if source is not None and names_code(algo):
                require_word([f"algo = {algo}"], trust, source)
            for given in grid.combinations():
                yield point_of(env, algo, grid.preset, given, source=source, trust=trust)


def point_of(
    env: str,
    algo: str,
    preset: str,
    given: Mapping[str, object],
    *,
    source: str | None = None,
    trust: Trust = False,
) -> Point:
    """These settings, resolved; UsageError if they cannot be."""
    try:
        config = resolve(env, algo, preset, None, {"threads": THREADS, **given})
        check_timeout(config)
    except SurefootError as error:
        error.add_note(f"(in the run of {algo} on {env}" + "".join(f", {n}={v}" for n, v in given.items()) + ")")
        raise
    if source is not None:
        named = replace(config, origins=dict.fromkeys(config.origins, f"file {source}"))
        require_trust(named, trust, source)
    return Point(config, tuple(given), preset)


def _check_names(runs: Iterable[Planned]) -> None:
    """No two runs share a directory; upper and lower case are the same to some file systems."""
    found: dict[str, Planned] = {}
    for run in runs:
        other = found.setdefault(run.name.lower(), run)
        if other is not run:
            raise UsageError(
                f"{other.point.describe()} and {run.point.describe()} would both be kept in {run.name}; "
                "sweep them into two folders (--out)"
            )
