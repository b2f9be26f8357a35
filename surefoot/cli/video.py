"""`surefoot video RUN`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from surefoot.cli.eval import add_playing, playing_options
from surefoot.cli.flags import Parser
from surefoot.text import print
from surefoot.training.reports.progress import as_return

EXAMPLES = """examples:
  surefoot video latest                           one greedy episode
  surefoot video latest --untrained               untrained next to trained
  surefoot video latest --episodes 3 --out a.mp4  three episodes in a row
"""


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot video",
        description=f"Record a video of a run's policy as mp4 (H.264); no display is needed.\n\n{EXAMPLES}",
    )
    add_playing(parser, episodes=1)
    parser.add_argument(
        "--untrained",
        action="store_true",
        help="show the untrained policy beside it",
    )
    parser.add_argument("--out", metavar="FILE.mp4", help="the file to write [RUN/videos/STEP.mp4]")
    arguments = parser.parse_args(words)
    playing = playing_options(arguments)
    from surefoot.api import video
    from surefoot.runs import find_run
    from surefoot.training.evaluation.headless import go_headless

    go_headless()
    found = video(find_run(arguments.run), arguments.out, untrained=arguments.untrained, **playing)
    out = sys.stderr if arguments.json else sys.stdout
    print(f"{found.path}: {found.frames} frames of {found.width}×{found.height} at {found.fps:g}/s", file=out)
    for label, returns in found.returns.items():
        print(f"{label}: return {', '.join(as_return(x, *returns) for x in returns)}", file=out)
    if arguments.json:
        print(json.dumps({**asdict(found), "path": str(found.path)}))
    return 0
