"""`surefoot diagnose RUN…`: what is wrong with runs, and what to try."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypedDict

from surefoot.cli.flags import Parser
from surefoot.cli.plot import add_runs
from surefoot.errors import SurefootError
from surefoot.text import one_line, print
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from surefoot.analysis.diagnosis import Advice
    from surefoot.runs import Run

DESCRIPTION = """Tell why runs are not learning: what is wrong, which numbers show it, and which flag to try. The most
likely cause comes first. A healthy run gets no advice.

  surefoot diagnose latest
  surefoot diagnose CartPole-v1/ppo --json
"""


class Found(TypedDict):
    """A run's line in the output of `--json`."""

    run: str
    rows: int
    error: str | None  # why it could not be read
    failure: str | None  # why the run ended, if it failed
    advice: list[dict[str, object]]


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot diagnose", description=DESCRIPTION)
    add_runs(parser, "latest")
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    arguments = parser.parse_args(words)
    from surefoot.runs.selection import select_runs

    runs = select_runs(arguments.runs or ["latest"])
    failed: SurefootError | None = None
    for place, found in enumerate(runs):
        try:
            rows, advice = _examine(found)
        except SurefootError as error:
            if len(runs) == 1 and not arguments.json:
                raise
            failed, rows, advice = error, 0, None
            if not arguments.json:
                print(f"surefoot: {error}", file=sys.stderr)
                continue
        if arguments.json:
            print(json.dumps(_as_json(found, rows, advice, failed if advice is None else None)))
        else:
            print(("\n" if place else "") + fit(_as_text(found, rows, advice or []), sys.stdout))
    return 0 if failed is None else failed.exit_code


def _examine(found: Run) -> tuple[int, list[Advice]]:
    from surefoot.analysis.diagnosis import diagnose

    found.refuse_other_schema()
    return len(found.metrics), diagnose(found)


def _failure(found: Run) -> str | None:
    """What ended the run, which no metric shows."""
    try:
        status = found.directory.read_status()
    except (SurefootError, OSError):
        return None
    return one_line(str(status.get("error", "unknown"))) if status.get("state") == "failed" else None


def _as_json(found: Run, rows: int, advice: list[Advice] | None, error: SurefootError | None) -> Found:
    return {
        "run": str(found.path),
        "rows": rows,
        "error": None if error is None else str(error),
        "failure": None if advice is None else _failure(found),
        "advice": [asdict(one) for one in advice or []],
    }


def _as_text(found: Run, rows: int, advice: list[Advice]) -> str:
    name = one_line(str(found.path))
    failure = _failure(found)
    if failure is not None:
        name += f": the run failed: {failure}\nbefore that"
    if not rows:
        return f"{name}: no rows of metrics yet, so there is nothing to judge"
    if not advice:
        return f"{name}: nothing unusual in {rows:,} rows"
    lines = [f"{place}. since update {one.since_update:,}: {one.text}" for place, one in enumerate(advice, 1)]
    return "\n".join([f"{name}:", *lines])
