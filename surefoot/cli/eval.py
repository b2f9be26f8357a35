"""`surefoot eval RUN`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from surefoot.cli.flags import Parser
from surefoot.errors import UsageError
from surefoot.settings import coerce


def run(words: Sequence[str]) -> int:
    parser = Parser(prog="surefoot eval", description="Evaluate a run's policy over whole episodes with fixed seeds.")
    parser.add_argument("run", metavar="RUN", help="a run's directory, a unique prefix of it, or latest")
    parser.add_argument("--episodes", default="100", metavar="N", help="episodes to play [100]")
    parser.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the likeliest")
    parser.add_argument("--seed", metavar="N", help="other episodes than those of the run's own evaluation")
    parser.add_argument("--max-steps", metavar="N", help="longest episode [the env's own limit, else 10_000]")
    parser.add_argument("--json", action="store_true", help="the last line on stdout is one JSON object")
    arguments = parser.parse_args(words)
    episodes = coerce("episodes", arguments.episodes, int)
    max_steps = coerce("max_steps", arguments.max_steps, int | None)
    if episodes < 1 or (max_steps is not None and max_steps < 1):
        raise UsageError("--episodes and --max-steps must be at least 1")
    from surefoot.runs import find_run
    from surefoot.training.api import evaluate_run

    found = find_run(arguments.run)
    evaluation = evaluate_run(
        found,
        episodes=episodes,
        seed=coerce("seed", arguments.seed, int | None),
        deterministic=not arguments.stochastic,
        max_steps=max_steps,
    )
    manner = "stochastic" if arguments.stochastic else "greedy"
    print(
        f"{found.path}\n{manner} return {evaluation.mean_return:.1f} ± {evaluation.std_return:.1f} over {episodes} "
        f"episodes, mean length {evaluation.mean_length:.0f}"
        + (f", {evaluation.cut} cut at the step budget" if evaluation.cut else ""),
        file=sys.stderr if arguments.json else sys.stdout,
    )
    if arguments.json:
        print(json.dumps({"run_dir": str(found.path), **evaluation.as_dict()}))
    return 0
