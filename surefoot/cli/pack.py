"""`surefoot pack RUN`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.cli.flags import Parser
from surefoot.text import print


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot pack",
        description="Write a run as one zip file to send: its settings and logs, and its latest and best checkpoints, "
        "with their hashes. `surefoot unpack` turns it back into a run.",
    )
    parser.add_argument("run", metavar="RUN", help="the run: its directory, a unique prefix of its name, or latest")
    parser.add_argument("--out", metavar="FILE.zip", help="the file to write [NAME-OF-THE-RUN.zip]")
    arguments = parser.parse_args(words)
    from surefoot.runs import find_run
    from surefoot.runs.pack import pack

    found = find_run(arguments.run)
    out = Path(arguments.out) if arguments.out else Path(f"{found.path.resolve().name}.zip")
    files = pack(found, out)
    print(f"{out}: {len(files)} files, {out.stat().st_size:,} bytes")
    return 0
