"""A grid of runs as it is written down: environments × algorithms × settings × seeds. Nothing is resolved here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from surefoot.errors import UsageError, did_you_mean
from surefoot.runs.files import read_toml
from surefoot.training.config.run_config import DEFAULT_ALGO

KEYS = ("env", "algo", "seeds", "preset", "settings", "vary")
OF_A_PLAN = ("surefoot", "grid")  # other keys that a file may have
ELSEWHERE = {"env": "env", "algo": "algo", "seed": "seeds"}  # settings that have keys of their own in a grid
SEEDS = "0..4"  # the default: one seed says little
MOST_SEEDS = 100_000


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of these is a run. Values are as they were typed; the resolver checks them."""

    envs: tuple[str, ...]
    algos: tuple[str, ...] = (DEFAULT_ALGO,)
    seeds: tuple[int, ...] = tuple(range(5))
    preset: str = "auto"
    settings: Mapping[str, object] = field(default_factory=dict)  # the same for every run
    vary: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.envs:
            raise UsageError("no environment given; name one or more: --env CartPole-v1 Pendulum-v1")
        for name in (*self.settings, *self.vary):
            if name in ELSEWHERE:
                raise UsageError(f"'{name}' is not a setting to vary or fix; list the values under {ELSEWHERE[name]}")
        for name in self.vary:
            if name in self.settings:
                raise UsageError(f"'{name}' is both fixed and varied; give it once")

    def combinations(self) -> Iterable[dict[str, object]]:
        """The settings of every point: those that are fixed, with one value of each that varies."""
        for values in product(*self.vary.values()):
            yield {**self.settings, **dict(zip(self.vary, values, strict=True))}

    def as_toml(self) -> dict[str, object]:
        """A table from which `read_grids` makes this grid again."""
        table: dict[str, object] = {"env": list(self.envs), "algo": list(self.algos), "seeds": seeds_text(self.seeds)}
        if self.preset != "auto":
            table["preset"] = self.preset
        if self.settings:
            table["settings"] = dict(self.settings)
        if self.vary:
            table["vary"] = {name: list(values) for name, values in self.vary.items()}
        return table


def read_grids(file: Path) -> list[Grid]:
    """The grids of a TOML file: one, or several as `[[grid]]` tables, which inherit the keys outside of them."""
    found = read_toml(file)
    own: dict[str, object] = {key: value for key, value in found.items() if key not in OF_A_PLAN}
    tables = found.get("grid", [{}])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        raise UsageError(f"{file}: 'grid' is not a list of tables; write each as [[grid]]")
    return [grid_from({**own, **table, **_merged(own, table)}, str(file)) for table in tables]


def _merged(outer: Mapping[str, object], inner: Mapping[str, object]) -> dict[str, object]:
    """The tables `settings` and `vary` of both; what the inner one fixes, the outer one no longer varies."""
    found: dict[str, object] = {}
    for key, other in (("settings", "vary"), ("vary", "settings")):
        above, below, beside = outer.get(key, {}), inner.get(key, {}), inner.get(other, {})
        if isinstance(above, dict) and isinstance(below, dict) and isinstance(beside, dict):
            found[key] = {name: value for name, value in above.items() if name not in beside} | below
    return found


def grid_from(table: Mapping[str, object], source: str) -> Grid:
    """A grid from the keys of a TOML table."""
    for key in table:
        if key not in KEYS:
            near = did_you_mean(key, KEYS) or "; settings of the runs go into [settings] or [vary]"
            raise UsageError(f"{source}: unknown key '{key}'{near}")
    settings, vary = (_table(table.get(key, {}), key, source) for key in ("settings", "vary"))
    for name, values in vary.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{source}: vary.{name} must be a list of values, such as [1e-4, 3e-4]")
    preset = table.get("preset", "auto")
    if not isinstance(preset, str):
        raise UsageError(f"{source}: preset={preset!r} is not a string; write it in quotes")
    return Grid(
        envs=_names(table.get("env", []), "env", source),
        algos=_names(table.get("algo", DEFAULT_ALGO), "algo", source) or (DEFAULT_ALGO,),
        seeds=parse_seeds(_words(table.get("seeds", SEEDS))),
        preset=preset,
        settings=settings,
        vary={name: tuple(values) for name, values in vary.items() if isinstance(values, list)},
    )


def _table(value: object, key: str, source: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{source}: '{key}' is not a table; write it as [{key}]")
    return value


def _names(value: object, key: str, source: str) -> tuple[str, ...]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in found):
        raise UsageError(f"{source}: {key}={value!r} is not a name or a list of names")
    return tuple(dict.fromkeys(found))


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Seeds from `0..9`, `0,3,7`, `0 1 2`, or several of these; each counts once."""
    found: dict[int, None] = {}
    for piece in (piece for word in words for piece in word.replace(",", " ").split()):
        match = re.fullmatch(r"(\d{1,10})(?:\.\.(\d{1,10}))?", piece)
        if match is None:
            raise UsageError(f"seeds: '{piece}' is not a seed or a range; write them as 0..9, 0,3,7 or 0 1 2")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise UsageError(f"seeds: '{piece}' is empty; write the smaller number first: {last}..{first}")
        if last - first >= MOST_SEEDS:
            raise UsageError(f"seeds: '{piece}' is {last - first + 1:,} seeds; at most {MOST_SEEDS:,} are allowed")
        found |= dict.fromkeys(range(first, last + 1))
    if not found:
        raise UsageError("seeds: none given; write them as 0..9, 0,3,7 or 0 1 2")
    return tuple(found)


def seeds_text(seeds: Sequence[int]) -> str:
    """`0..9` or `0,3,7`: what `parse_seeds` reads."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(f"{first}..{last}" if last > first else str(first) for first, last in runs)


def parse_vary(words: Sequence[str]) -> dict[str, tuple[object, ...]]:
    """Values by setting, from `learning_rate=1e-4,3e-4`. A semicolon separates values that contain commas."""
    found = parse_assignments("--vary", words, "--vary learning_rate=1e-4,3e-4")
    return {name: tuple(split_values(text)) for name, text in found.items()}


def parse_assignments(flag: str, words: Sequence[str], example: str) -> dict[str, str]:
    """The text of each setting, from `NAME=TEXT`, where NAME may be written like a flag."""
    found: dict[str, str] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not name or not split_values(text):
            raise UsageError(f"{flag} {word}: write it as {example}")
        if name in found:
            raise UsageError(f"{flag} names {name} twice; give all of its values at once: {flag} {name}=A,B")
        found[name] = text.strip()
    return found


def split_values(text: str) -> list[str]:
    """Values between commas, or between semicolons if they contain commas."""
    values = (value.strip() for value in text.split(";" if ";" in text else ","))
    return [value for value in values if value]


def with_flags(
    grid: Grid,
    *,
    envs: Sequence[str] = (),
    algos: Sequence[str] = (),
    seeds: Sequence[int] = (),
    preset: str | None = None,
    settings: Mapping[str, object],
    vary: Mapping[str, tuple[object, ...]],
) -> Grid:
    """A grid of a file, overridden by what was typed."""
    typed = (*settings, *vary)
    return replace(
        grid,
        envs=tuple(envs) or grid.envs,
        algos=tuple(algos) or grid.algos,
        seeds=tuple(seeds) or grid.seeds,
        preset=preset or grid.preset,
        settings={n: v for n, v in grid.settings.items() if n not in typed} | dict(settings),
        vary={n: v for n, v in grid.vary.items() if n not in typed} | dict(vary),
    )
