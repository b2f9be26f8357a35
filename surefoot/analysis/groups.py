"""Groups runs that repeat the same experiment: those that differ in nothing but their seeds.

Runs of the same env, algorithm and settings with different seeds are one group. A group is named by what sets it apart:
the algorithm if there are several, and the settings that vary between runs of the same algorithm on the same env.
Settings that follow from the algorithm or the env (each has presets of its own) are not worth a name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TypeVar

from surefoot.errors import SurefootError, UsageError
from surefoot.runs import Run
from surefoot.runs.catalog import RUNNING
from surefoot.runs.index import started
from surefoot.runs.manifest import other_schema
from surefoot.text import one_line

T = TypeVar("T")
APART = RUNNING | {"env", "algo"}  # settings that set no group apart, or have a place of their own in its name


@dataclass(frozen=True)
class Member:
    """A run with what determines its group."""

    run: Run
    env: str  # safe to show
    algo: str
    seed: int | None
    settings: Mapping[str, str]  # values in the form in which they are typed
    started: float  # seconds since 1970


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seeds and their envs."""

    name: str
    members: tuple[Member, ...]

    def on(self, env: str) -> list[Member]:
        return [member for member in self.members if member.env == env]

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(member.env for member in self.members))


def read_members(runs: Iterable[Run]) -> tuple[list[Member], list[str]]:
    """(those that can be read, a note on each that cannot)."""
    members, notes = [], []
    for run in runs:
        try:
            members.append(_member(run))
        except (SurefootError, OSError, ValueError) as error:
            gone = not run.path.is_dir()
            notes.append(f"{one_line(str(run.path))} is left out: {'it is gone' if gone else one_line(str(error))}")
    return members, notes


def _member(run: Run) -> Member:
    manifest, config = run.manifest, run.config
    if (who := other_schema(manifest)) is not None:
        raise UsageError(f"it was {who}")
    env, algo, seed = (manifest.get(name, config.get(name)) for name in ("env", "algo", "seed"))
    if not isinstance(env, str) or not isinstance(algo, str):
        raise UsageError("its manifest does not name an env and an algorithm")
    settings = {name: as_typed(value) for name, value in config.items() if name not in APART}
    begun = started(manifest.get("created"), run.directory.manifest.stat().st_mtime)
    return Member(run, one_line(env), one_line(algo), seed if isinstance(seed, int) else None, settings, begun)


def as_typed(value: object) -> str:
    """A setting's value as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(as_typed, value)) if isinstance(value, list) else str(value)


def group_runs(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """(groups in the order of their first runs, notes on what was left out)."""
    members, notes = read_members(runs)
    varied = varied_settings(members)
    several = len({member.algo for member in members}) > 1
    alike: dict[tuple[str, ...], list[Member]] = defaultdict(list)
    for member in members:
        alike[(member.algo, *_assignments(member, varied[member.algo]))].append(member)
    groups: dict[str, Group] = {}
    for (algo, *settings), found in alike.items():
        words = [algo, *settings] if several or not settings else settings
        name = _unused(one_line(" ".join(words), longest=80), groups)
        once, repeated = _once(found)
        groups[name] = Group(name, tuple(once))
        notes += [f"{name}: {note}" for note in repeated]
    return list(groups.values()), notes


def _assignments(member: Member, varied: Sequence[str]) -> list[str]:
    return [f"{name}={member.settings[name]}" for name in varied if name in member.settings]


def _unused(name: str, taken: Mapping[str, Group]) -> str:
    """Long names are cut, and may then be equal."""
    return next(found for found in chain([name], (f"{name} ({i})" for i in count(2))) if found not in taken)


def varied_settings(members: Sequence[Member]) -> dict[str, list[str]]:
    """By algorithm: the settings that differ between runs of the same env. One that a run does not know is no
    difference: earlier versions did not write it."""
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for member in members:
        for setting, value in member.settings.items():
            seen[member.algo, member.env][setting].add(value)
    found: dict[str, dict[str, None]] = {member.algo: {} for member in members}
    for (algo, _), settings in seen.items():
        found[algo] |= {setting: None for setting, values in settings.items() if len(values) > 1}
    return {algo: list(settings) for algo, settings in found.items()}


def _once(members: Sequence[Member]) -> tuple[list[Member], list[str]]:
    """(those that count, notes on the others)."""
    counted = newest_of_each(members, lambda member: (member.env, member.seed), lambda member: member.started)
    kept = {id(member) for member in counted}
    others = (member for member in members if id(member) not in kept)
    notes = (f"seed {other.seed} was run more than once on {other.env}; the newest run counts" for other in others)
    return counted, list(dict.fromkeys(notes))


def newest_of_each(
    runs: Iterable[T], experiment: Callable[[T], tuple[object, int | None]], started: Callable[[T], float]
) -> list[T]:
    """Two runs with the same seed are the same experiment, so only the newer one counts.

    `experiment`: (what else sets it apart, its seed). A run whose seed is unknown is an experiment of its own.
    """
    newest: dict[object, T] = {}
    for number, run in enumerate(runs):
        what, seed = experiment(run)
        key = (number,) if seed is None else (what, seed)
        if key not in newest or started(run) >= started(newest[key]):
            newest[key] = run
    return list(newest.values())
