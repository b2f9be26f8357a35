"""`surefoot explain ALGO`: an algorithm's docstring and settings as a page."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence

from surefoot.algorithms import ALGORITHMS, described, get_algorithm, preset_algorithm
from surefoot.cli.flags import Parser, format_value
from surefoot.settings import options, title_of
from surefoot.text import print
from surefoot.training.config.resolve import all_options
from surefoot.training.reports.screen import fit


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot explain",
        description="Show an algorithm's formula, what it adds to the previous one, and every setting.",
    )
    parser.add_argument(
        "algo", metavar="ALGO", help=f"one of {', '.join(ALGORITHMS)}, or your own: file.py:Class, module:Class"
    )
    print(fit(explain(parser.parse_args(words).algo)))
    return 0


def explain(name: str) -> str:
    algorithm = get_algorithm(name)
    heading = " → ".join(f"[{rung}]" if rung == name else rung for rung in ALGORITHMS)
    if name not in ALGORITHMS:
        tuned = preset_algorithm(name, algorithm)
        heading = name + (f" (uses the presets of {tuned})" if tuned != name else "")
    lines = [heading, "", described(algorithm), "", "settings (default in brackets)"]
    title = ""
    all_options(algorithm)  # refuses a setting that another part of the run has
    for option in options(algorithm.config_type):
        group = title_of(option.owner).lower()
        if group != title:
            lines += ["", f"  {group}"]
            title = group
        lines.append(f"    {option.name} [{format_value(option.default)}]")
        lines.append(f"        {option.help}")
    source = inspect.getfile(algorithm)
    source = min(source, os.path.relpath(source), key=len)
    lines += ["", f"source: {source}", f"try it: surefoot train CartPole-v1 --algo {name}"]
    return "\n".join(lines)
