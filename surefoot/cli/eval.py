"""`surefoot eval RUN`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from surefoot.cli.flags import Parser, add_json, add_run, trusting
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.text import print
from surefoot.training.reports.result import describe_evaluation
from surefoot.training.reports.screen import fit

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot eval", description="Evaluate the policy of a run over whole episodes with fixed seeds."
    )
    add_playing(parser, episodes=100)
    arguments = parser.parse_args(words)
    playing = playing_options(arguments)
    from surefoot.api import evaluate_run
    from surefoot.runs import find_run

    found = find_run(arguments.run)
    evaluation, folder, passed_over = evaluate_run(found, **playing)
    out = sys.stderr if arguments.json else sys.stdout
    for reason in passed_over:
        print(f"skipped: {reason}", file=sys.stderr)
    manner = "stochastic" if arguments.stochastic else "greedy"
    print(fit(f"{folder}\n{manner} {describe_evaluation(evaluation.summary())}", out), file=out)
    if arguments.json:
        print(json.dumps({"run_dir": str(found.path), "checkpoint": folder.name, **evaluation.as_dict()}))
    return 0


def add_playing(parser: Parser, episodes: int) -> None:
    """Flags shared by `eval` and `video`."""
    add_run(parser)
    parser.add_argument(
        "--checkpoint", default="latest", metavar="{best,latest,STEP}", help="the checkpoint to use [latest]"
    )
    parser.add_argument("--episodes", default=str(episodes), metavar="N", help=f"episodes to play [{episodes}]")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely")
    parser.add_argument("--seed", metavar="N", help="seed of the episodes [that of the run's own evaluation]")
    parser.add_argument("--max-steps", metavar="N", help="longest episode, in steps [the env's own limit, else 10_000]")
    add_json(parser)


class Playing(TypedDict):
    """The arguments for `evaluate_run` and `video`."""

    checkpoint: str
    episodes: int
    seed: int | None
    deterministic: bool
    max_steps: int | None
    strict: bool
    trust: bool | Callable[[str], bool]


def playing_options(arguments: Namespace) -> Playing:
    """The values of those flags, checked."""
    episodes = coerce("episodes", arguments.episodes, int)
    max_steps = coerce("max_steps", arguments.max_steps, int | None)
    if episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UsageError("--episodes and --max-steps must be at least 1")
    return {
        "checkpoint": arguments.checkpoint,
        "episodes": episodes,
        "seed": coerce("seed", arguments.seed, int | None),
        "deterministic": not arguments.stochastic,
        "max_steps": max_steps,
        "strict": arguments.strict,
        "trust": trusting(arguments.trust),
    }
