"""`surefoot ui`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.cli.flags import Parser
from surefoot.drawing import missing_for_page
from surefoot.errors import UsageError
from surefoot.runs.directory import ROOT
from surefoot.settings import coerce

PORT = 6060
EXAMPLES = """examples:
  surefoot ui --open                the runs below runs/, and a browser
  surefoot ui --runs ~/study        those of another folder
  surefoot ui --host 0.0.0.0        for other machines: a link with a token
"""


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot ui",
        description=f"Show runs live in the browser: curves, instruments, settings, videos, comparisons. "
        f"Reads run directories and writes nothing to them.\n\n{EXAMPLES}",
    )
    parser.add_argument("--runs", default=str(ROOT), metavar="DIR", help=f"the folder that holds the runs [{ROOT}]")
    parser.add_argument("--port", default=str(PORT), metavar="N", help=f"port, 0 for any free one [{PORT}]")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on [127.0.0.1]")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    arguments = parser.parse_args(words)
    port = coerce("port", arguments.port, int)
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port} is not a valid port; choose one from 0 to 65535")
    if missing := missing_for_page():
        raise UsageError(f"surefoot ui needs {', '.join(missing)}; install the extra: pip install 'surefoot[ui]'")
    root = Path(arguments.runs)
    if root.exists() and not root.is_dir():
        raise UsageError(f"--runs {root} is a file; name the folder that holds the runs")
    if not root.exists() and arguments.runs != str(ROOT):
        raise UsageError(f"--runs {root}: there is no such folder")
    from surefoot.dashboard.server import serve

    serve(root, arguments.host, port, open_browser=arguments.open)
    return 0
