"""`surefoot serve RUN`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from surefoot.cli.flags import Parser
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.text import print

PORT = 6070
EXAMPLES = """examples:
  surefoot serve latest
  surefoot serve latest --checkpoint best --port 8000
  curl http://127.0.0.1:6070/act -d '{"observation": [0, 0.1, 0, -0.1]}'
"""
DESCRIPTION = """Serve a run's policy over HTTP, to programs on this machine: POST /act takes an observation, or a list
of them, as JSON and answers with the action. GET /health and /metrics are for monitoring; docs/serve.md has the format.

It uses neither PyTorch nor the env, and executes no code of the run."""


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot serve", description=f"{DESCRIPTION}\n\n{EXAMPLES}")
    parser.add_argument("run", metavar="RUN", help="the run: its directory, a unique prefix of its name, or latest")
    parser.add_argument(
        "--checkpoint", default="latest", metavar="{best,latest,STEP}", help="the checkpoint to use [latest]"
    )
    parser.add_argument("--port", default=str(PORT), metavar="N", help=f"port, 0 for any free one [{PORT}]")
    parser.add_argument("--max-bytes", default="8_388_608", metavar="N", help="size of a request [8_388_608]")
    parser.add_argument("--max-batch", default="256", metavar="N", help="observations in a request [256]")
    parser.add_argument("--seed", default="0", metavar="N", help="seed of actions that are drawn [0]")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a damaged checkpoint (exit code 4) instead of using an older one"
    )
    arguments = parser.parse_args(words)
    names = ("port", "max_bytes", "max_batch", "seed")
    port, most_bytes, most, seed = (coerce(name, getattr(arguments, name), int) for name in names)
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port} is not a valid port; choose one from 0 to 65535")
    for name, value in (("--max-bytes", most_bytes), ("--max-batch", most), ("--seed", seed + 1)):
        if value < 1:
            raise UsageError(f"{name} is too small")
    if find_spec("uvicorn") is None:
        raise UsageError("surefoot serve needs uvicorn; install the extra: pip install 'surefoot[ui]'")
    from surefoot.deploy.serve.app import Limits
    from surefoot.deploy.serve.server import serve
    from surefoot.runs.locate import locate_checkpoint

    folder, passed_over = locate_checkpoint(arguments.run, arguments.checkpoint, strict=arguments.strict)
    for reason in passed_over:
        print(f"note: skipped: {reason}", file=sys.stderr)
    serve(folder, port, Limits(most_bytes, most), seed)
    return 0
