"""`surefoot list algos|envs|presets|runs`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence

from surefoot.algorithms import ALGORITHMS, described, get_algorithm, installed_algorithms
from surefoot.cli.flags import Parser
from surefoot.errors import SurefootError, UsageError, did_you_mean, user_errors
from surefoot.text import one_line, print
from surefoot.training.reports.progress import as_return
from surefoot.training.reports.screen import table

Row = Mapping[str, object]  # a table row, by column


def run(words: Sequence[str]) -> int:
    kinds: dict[str, Callable[[], list[Row]]] = {"algos": _algos, "envs": _envs, "presets": _presets, "runs": _runs}
    parser = Parser(prog="surefoot list", description="List algorithms, environments, presets or runs.")
    parser.add_argument("kind", metavar="{" + ",".join(kinds) + "}", help="what to list")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of a table")
    parser.add_argument("--tag", action="append", metavar="TAG", help="only runs with this tag (`train --tags`)")
    arguments = parser.parse_args(words)
    if arguments.kind not in kinds:
        raise UsageError(
            f"cannot list '{arguments.kind}'{did_you_mean(arguments.kind, kinds)} (one of {', '.join(kinds)})"
        )
    if arguments.tag and arguments.kind != "runs":
        raise UsageError("--tag chooses among runs: surefoot list runs --tag TAG")
    rows = kinds[arguments.kind]()
    if arguments.tag:
        rows = [row for row in rows if set(arguments.tag) <= _tags(row)]
        if not rows and not arguments.json:
            print(f"no run has the tag {' and '.join(arguments.tag)}")
            return 0
    if arguments.json:
        print(json.dumps(rows))
    else:
        _table(rows, arguments.kind)
    return 0


def _tags(row: Row) -> set[object]:
    tags = row.get("tags")
    return set(tags) if isinstance(tags, list) else set()


def _algos() -> list[Row]:
    rows: list[Row] = []
    for name in dict.fromkeys([*ALGORITHMS, *installed_algorithms()]):
        try:
            rows.append({"algo": name, "what": described(get_algorithm(name)).splitlines()[0]})
        except SurefootError as error:  # from another package; still list the others
            print(f"{name} cannot be listed: {error}", file=sys.stderr)
    return rows


def _envs() -> list[Row]:
    from surefoot.envs.backends import backend_of, known_names

    found: list[str] = []
    for prefix in ("", *(f"{name}:" for name in known_names())):
        try:
            found += backend_of(prefix).ids()
        except user_errors() as error:  # an error in another package; still list the others
            print(f"{prefix} cannot be listed: {error}", file=sys.stderr)
    return [{"env": name} for name in found]


def _presets() -> list[Row]:
    from surefoot.training.config.presets import list_presets, load_preset

    columns = ("env", "algo", "total_steps")
    return [{"preset": name, **{c: load_preset(name).get(c) for c in columns}} for name in list_presets()]


def _runs() -> list[Row]:
    from surefoot.runs.index import describe, list_runs

    return [row for found in list_runs() if (row := describe(found)) is not None]


def _table(rows: list[Row], kind: str) -> None:
    if not rows:
        print(f"no {kind} yet" + ("; train one: surefoot train CartPole-v1" if kind == "runs" else ""))
        return
    optional = {name for name in ("name", "tags") if not any(row.get(name) for row in rows)}
    names = [name for name in max(rows, key=len) if name != "why" and name not in optional]
    cells = [[one_line(_cell(name, row.get(name))) for name in names] for row in rows]
    print(*table(names, cells), sep="\n")
    for row in rows:
        if "why" in row:
            print(f"{one_line(str(row['run']))} cannot be read: {one_line(str(row['why']))}", file=sys.stderr)


def _cell(name: str, value: object) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, float):
        return as_return(value)
    return f"{value:,}" if name in ("steps", "total_steps") else str(value)
