"""`surefoot compare RUN…`: which method is better, as far as the runs can tell."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from surefoot.cli.flags import Parser, add_json
from surefoot.cli.plot import add_runs
from surefoot.cli.sweep_flags import add_grid, add_pool, algorithms_of, grid_parser, is_typed, typed_grids
from surefoot.drawing import can_draw, check_picture
from surefoot.errors import SurefootError, UsageError
from surefoot.runs import Run
from surefoot.settings import coerce
from surefoot.text import print
from surefoot.training.reports.screen import fit, table, table_fits

if TYPE_CHECKING:
    from surefoot.analysis.comparison import Comparison

DESCRIPTION = """Compare methods over the seeds of existing runs: mean, median, interquartile mean and optimality gap
with 95 % intervals, the probability that one method beats another, steps to a threshold, and how many seeds would
settle it. Runs that differ only in their seeds and envs are one method.

  surefoot compare CartPole-v1
  surefoot compare CartPole-v1 --out report.html
  surefoot compare CartPole-v1 --reference CartPole-v1=0:500

With --env, the runs are trained first, several at a time, as in `surefoot sweep`. Existing runs are not trained again,
and an interrupted comparison continues where it stopped.

  surefoot compare --env CartPole-v1 --algo ppo trpo a2c --seeds 0..9 --jobs 2
  surefoot compare --env Pendulum-v1 --vary learning_rate=1e-4,3e-4,1e-3
"""
PAGES = (".html", ".htm")


def run(words: Sequence[str]) -> int:
    parser = _parser(algorithms_of(words))
    arguments = parser.parse_args(words)
    pages, folder = _places(arguments)
    at_step = coerce("at_step", arguments.at_step, int | None)
    if at_step is not None and at_step < 1:
        raise UsageError(f"--at-step {at_step}: give a step of the runs, at least 1")
    references = {env: _pair(env, text) for env, text in map(_assignment, arguments.reference)}
    thresholds = {env: _number("--threshold", text) for env, text in map(_assignment, arguments.threshold)}
    picture = check_picture("--plot", arguments.plot) if arguments.plot else None
    page = _check_page(pages[-1]) if pages else None
    from surefoot.analysis.comparison import compare

    runs, failed = _runs(arguments, parser, folder, ["compare", *words])
    if not runs:
        return int(failed)
    found = compare(runs, metric=arguments.metric, at_step=at_step, references=references, thresholds=thresholds)
    out = sys.stderr if arguments.json else sys.stdout
    show(found, out)
    written = write(found, picture=picture, page=page, table=Path(arguments.csv) if arguments.csv else None)
    for kind, path in written.items():
        print(f"{kind}: {path}", file=out)
    if arguments.json:
        from surefoot.analysis.wording import to_data

        print(json.dumps(to_data(found)))
    return int(failed)


def _runs(arguments: Namespace, parser: Parser, folder: str | None, command: Sequence[str]) -> tuple[list[Run], bool]:
    """(the runs to compare, whether any of them failed): those that are named, or those of a grid, trained first."""
    from surefoot.runs.directory import ROOT
    from surefoot.runs.selection import select_runs

    if arguments.env is None:
        if is_typed(arguments, parser) or folder is not None:
            raise UsageError("to train the runs that are compared, name an environment: --env CartPole-v1")
        return select_runs(arguments.runs or [ROOT]), False
    if arguments.runs:
        raise UsageError(f"'{arguments.runs[0]}' names existing runs, but --env trains new ones; give one of the two")
    from surefoot.cli.sweep import asked_for, train

    asked = replace(asked_for(typed_grids(arguments, parser), folder), command=command)
    tracked = train(asked, arguments)
    if tracked is None:  # --dry-run
        return [], False
    done = [Run(one.directory) for one in tracked if one.stage == "done"]
    if not done:
        raise SurefootError("no run has finished, so there is nothing to compare")
    return done, len(done) < len(tracked)


def _places(arguments: Namespace) -> tuple[list[str], str | None]:
    """(reports, the folder of runs to train) among what `--out` names."""
    pages = [place for place in arguments.out if Path(place).suffix.lower() in PAGES]
    folders = [place for place in arguments.out if place not in pages]
    if folders and arguments.env is None:
        pages += folders  # refused later: they are not reports
    if len(pages) > 1 or len(folders) > 1:
        raise UsageError(f"--out names one report and one folder at most: {' '.join(arguments.out)}")
    return pages, folders[0] if folders and arguments.env is not None else None


def _parser(algos: Sequence[str]) -> Parser:
    usage = "surefoot compare [RUN …] [flags]\n       surefoot compare --env ENV … [--algo ALGO …] [flags]"
    parser = grid_parser("compare", algos, usage, DESCRIPTION)
    add_runs(parser, "all below runs/")
    parser.add_argument("--metric", metavar="NAME", help="compare this metric [return of the final evaluation]")
    parser.add_argument("--at-step", metavar="N", help="compare at this step instead of at the end of each run")
    parser.add_argument(
        "--reference",
        nargs="+",
        default=[],
        metavar="ENV=LOW:HIGH",
        help="scores that count as 0 and 1 [lowest and highest score of the runs]",
    )
    parser.add_argument(
        "--threshold",
        nargs="+",
        default=[],
        metavar="ENV=X",
        help="show the steps to this score [nine tenths of the way from the start to the best method's end]",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the numbers as CSV")
    parser.add_argument("--plot", metavar="FILE", help="write a picture (.png, .svg or .pdf)")
    parser.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="FILE",
        help="write a report (.html), one file without scripts; with --env also the folder of the runs "
        "[runs/sweeps/ENVS_ALGOS]",
    )
    add_json(parser)
    add_pool(parser)
    add_grid(parser, algos)
    return parser


def show(comparison: Comparison, out: TextIO) -> None:
    """Print the tables, the verdicts and the notes."""
    from surefoot.analysis.wording import brief_columns, columns, title, verdicts

    short = False
    print(fit(f"score: {comparison.scoring.described}", out), file=out)
    for found in comparison.tables:
        print(fit(f"\n{title(found)}", out), file=out)
        cells = columns(found)
        if not table_fits(*cells, out) and table_fits(*brief_columns(found), out):
            cells, short = brief_columns(found), True
        print(*table(*cells, out), sep="\n", file=out)
        for line in verdicts(found):
            print(fit(line, out), file=out)
    if comparison.notes or short:
        print(file=out)
    if short:
        print(fit("mean, median and gap do not fit this terminal; --csv and --out have them", out), file=out)
    for note in comparison.notes:
        print(fit(f"note: {note}", out), file=out)


def write(
    comparison: Comparison, *, picture: Path | None = None, page: Path | None = None, table: Path | None = None
) -> dict[str, Path]:
    """Write the requested files; returns their paths by kind."""
    from surefoot.analysis.wording import to_csv

    written: dict[str, Path] = {}
    if table is not None:
        written["csv"] = _write_text(table, to_csv(comparison))
    if picture is not None:
        from surefoot.analysis.comparison_pictures import comparison_figure
        from surefoot.drawing import look, save

        with look():
            save(comparison_figure(comparison), picture)
        written["picture"] = picture
    if page is not None:
        from surefoot.analysis.report import report

        written["report"] = _write_text(page, report(comparison))
    return written


def _write_text(path: Path, text: str) -> Path:
    from surefoot.runs.files import write_errors_told, write_output

    with write_errors_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)
    return path


def _check_page(wanted: str) -> Path:
    if Path(wanted).suffix.lower() not in PAGES:
        raise UsageError(f"--out {wanted}: give a file that ends in .html (a picture: --plot, the numbers: --csv)")
    if not can_draw():
        raise UsageError(f'--out {wanted} needs matplotlib: pip install "surefoot[plots]"')
    return Path(wanted)


def _assignment(word: str) -> tuple[str, str]:
    env, equals, value = word.rpartition("=")
    if not equals or not env:
        raise UsageError(f"'{word}' does not say which env; write ENV=VALUE, such as CartPole-v1=500")
    return env, value


def _pair(env: str, text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise UsageError(f"--reference {env}={text}: write two scores, such as {env}=0:500")
    pair = _number("--reference", low), _number("--reference", high)
    if pair[0] >= pair[1]:
        raise UsageError(f"--reference {env}={text}: the first score must be the lower one")
    return pair


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{flag}: '{text}' is not a number") from None
    if not isfinite(value):
        raise UsageError(f"{flag}: '{text}' is not a finite number")
    return value
