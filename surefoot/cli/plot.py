"""`surefoot plot RUN…`: learning curves, as a picture or in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from surefoot.cli.flags import Parser
from surefoot.drawing import can_draw, check_picture
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.text import print
from surefoot.training.reports.screen import fit, width_of

if TYPE_CHECKING:
    from surefoot.analysis.plotting import Plot
    from surefoot.runs import Run

DESCRIPTION = """Draw learning curves of runs. Runs that differ only in their seeds become one line with a band; each
env has a panel of its own.

  surefoot plot latest --terminal
  surefoot plot CartPole-v1 --out cartpole.png
  surefoot plot CartPole-v1/ppo --metric kl --x updates
"""
WIDEST = 100  # columns of a curve in the terminal


def add_runs(parser: Parser, nothing: str) -> None:
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help=f"runs: directories, folders of runs, globs, names or their beginnings, latest [{nothing}]",
    )


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot plot", description=DESCRIPTION)
    add_runs(parser, "latest")
    parser.add_argument("--metric", default="episode_return", metavar="NAME", help="metric to draw [episode_return]")
    parser.add_argument("--list-metrics", action="store_true", help="print the metrics that these runs have")
    parser.add_argument("--x", default="steps", choices=("steps", "updates", "time"), help="horizontal axis [steps]")
    parser.add_argument("--smooth", default="1", metavar="N", help="average over N neighbouring rows [1]")
    parser.add_argument("--line", default="iqm", choices=("iqm", "mean", "median"), help="line of a group [iqm]")
    parser.add_argument(
        "--band",
        default="auto",
        choices=("auto", "interval", "range", "none"),
        help="band of a group: 95 %% interval, lowest to highest run [auto: interval for five or more runs]",
    )
    parser.add_argument("--out", metavar="FILE", help="file for the picture (.png, .svg or .pdf) [METRIC.png]")
    parser.add_argument("--terminal", action="store_true", help="draw in the terminal instead of a file")
    arguments = parser.parse_args(words)
    smoothing = coerce("smooth", arguments.smooth, int)
    if smoothing < 1:
        raise UsageError(f"--smooth {smoothing}: give the number of rows to average, at least 1")
    if arguments.terminal and arguments.out:
        raise UsageError("--terminal draws in the terminal and --out in a file; give one of them")
    picture = check_picture("--out", arguments.out) if arguments.out else None
    from surefoot.analysis.plotting import Style, plot_runs
    from surefoot.runs.selection import select_runs

    runs = select_runs(arguments.runs or ["latest"])
    if arguments.list_metrics:
        return _list_metrics(runs)
    plot = plot_runs(runs, arguments.metric, Style(arguments.x, arguments.line, arguments.band, smoothing))
    for note in plot.notes:
        print(fit(f"note: {note}", sys.stderr), file=sys.stderr)
    if not any(panel.lines for panel in plot.panels):
        raise UsageError("there is nothing to draw")
    if arguments.terminal or (picture is None and not can_draw()):
        return _in_terminal(plot, arguments)
    from surefoot.analysis.pictures import curves_figure
    from surefoot.drawing import look, save

    target = picture or check_picture("--out", f"{plot.metric.replace('/', '-')}.png")
    with look():
        save(curves_figure(plot), target)
    print(f"picture: {target}")
    return 0


def _list_metrics(runs: Sequence[Run]) -> int:
    from surefoot.analysis.curves import metric_names, read_rows

    print(*metric_names(row for found in runs for row in read_rows(found)), sep="\n")
    return 0


def _in_terminal(plot: Plot, arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.text import Text

    from surefoot.analysis.terminal import COLOURS, draw_panel
    from surefoot.training.reports.streams import unfailing

    out: TextIO = sys.stdout
    width = min(width_of(out) or 80, WIDEST)
    console = Console(file=unfailing(out), width=width, highlight=False, soft_wrap=True)
    braille = _can_show_braille(out)
    for panel in plot.panels:
        for row in draw_panel(panel, plot, width, braille=braille):
            text = Text()
            for cell in row:
                text.append(cell.text, None if cell.line is None else COLOURS[cell.line % len(COLOURS)])
            console.print(text)
    if not arguments.terminal:
        print('\nno picture without matplotlib: pip install "surefoot[plots]"')
    return 0


def _can_show_braille(stream: TextIO) -> bool:
    try:
        "⣿─".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return os.environ.get("TERM", "").lower() != "linux"  # the console's fonts have no braille
