"""`surefoot diff A B`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from surefoot.cli.flags import Parser, add_json, add_trust, trusting
from surefoot.text import print
from surefoot.training.reports.screen import fit


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot diff",
        description="Find the first update, tensor and sample at which two runs differ. Compares their settings, rows "
        "of metrics and common checkpoints, then replays both. Exit code 0: the same; 1: they differ.",
    )
    named = "a run: its directory, a unique prefix of its name, or latest"
    for name in ("a", "b"):
        parser.add_argument(name, metavar=name.upper(), help=named)
    parser.add_argument(
        "--strict", action="store_true", help="refuse a damaged checkpoint instead of using an older one"
    )
    add_trust(parser)
    add_json(parser)
    arguments = parser.parse_args(words)
    from surefoot.timetravel.diff import diff

    found = diff(arguments.a, arguments.b, strict=arguments.strict, trust=trusting(arguments.trust), progress=True)
    out = sys.stderr if arguments.json else sys.stdout
    print(fit("\n".join(found.lines()), out), file=out)
    if arguments.json:
        print(json.dumps(found.as_dict()))
    return 0 if found.same else 1
