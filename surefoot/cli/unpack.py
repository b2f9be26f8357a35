"""`surefoot unpack FILE.zip`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.cli.flags import Parser
from surefoot.text import print


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot unpack",
        description="Make a run of a zip that `surefoot pack` wrote. Nothing in the zip is trusted: files that a run "
        "does not have, links, wrong sizes and wrong hashes are refused, and nothing in it is executed.",
    )
    parser.add_argument("file", metavar="FILE.zip", help="the packed run")
    parser.add_argument("--out", metavar="DIR", help="the new folder of the run [runs/unpacked/NAME-OF-THE-FILE]")
    arguments = parser.parse_args(words)
    from surefoot.runs.directory import ROOT, escape, shell_path
    from surefoot.runs.pack import unpack

    file = Path(arguments.file)
    out = Path(arguments.out) if arguments.out else ROOT / "unpacked" / escape(file.stem, "run")
    found = unpack(file, out)
    print(f"{found.path}\nTo look at it: surefoot eval {shell_path(found.path)}")
    return 0
