"""`surefoot explain ALGO`: an algorithm's docstring and settings as a page."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence

from surefoot.algorithms import ALGORITHMS, get_algorithm
from surefoot.cli.flags import Parser, format_value
from surefoot.settings import options
from surefoot.text import print
from surefoot.training.reports.screen import fit


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot explain",
        description="Show an algorithm's formula, what it adds to the previous one, and every setting.",
    )
    parser.add_argument("algo", metavar="ALGO", help=f"one of {', '.join(ALGORITHMS)}")
    print(fit(explain(parser.parse_args(words).algo)))
    return 0


def explain(name: str) -> str:
    algorithm = get_algorithm(name)
    module = sys.modules[algorithm.__module__]
    ladder = " → ".join(f"[{rung}]" if rung == name else rung for rung in ALGORITHMS)
    lines = [ladder, "", (module.__doc__ or "").strip(), "", "settings (default in brackets)"]
    title = ""
    for option in options(algorithm.config_type):
        group = (option.owner.__doc__ or "").strip().splitlines()[0].rstrip(".").lower()
        if group != title:
            lines += ["", f"  {group}"]
            title = group
        lines.append(f"    {option.name} [{format_value(option.default)}]")
        lines.append(f"        {option.help}")
    source = inspect.getfile(algorithm)
    source = min(source, os.path.relpath(source), key=len)
    lines += ["", f"source: {source}", f"try it: surefoot train CartPole-v1 --algo {name}"]
    return "\n".join(lines)
