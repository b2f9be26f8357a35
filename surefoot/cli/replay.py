"""`surefoot replay RUN`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from surefoot.cli.flags import Parser, add_json, add_run, trusting
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.text import print
from surefoot.training.reports.screen import fit


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot replay",
        description="Rebuild one update of a run from the nearest checkpoint before it: its rollout, batch, weights "
        "and gradients. Nothing is written to the run's directory. Exit code 1 if the row of metrics is not the one "
        "that the run logged.",
    )
    add_run(parser)
    parser.add_argument("--update", metavar="N", help="the update, as numbered in metrics.jsonl")
    parser.add_argument("--step", metavar="N", help="instead: the update whose rollout contains this env step")
    parser.add_argument("--out", metavar="FILE", help="save all arrays to a .npz or .safetensors file")
    add_json(parser)
    arguments = parser.parse_args(words)
    update, step = coerce("update", arguments.update, int | None), coerce("step", arguments.step, int | None)
    if (update is None) == (step is None):
        raise UsageError("say which update to replay: --update N, or --step N for an env step of its rollout")
    from surefoot.runs import find_run
    from surefoot.runs.run import Run
    from surefoot.timetravel.replay import check_target, replay
    from surefoot.timetravel.summary import as_dict, describe

    target = None if arguments.out is None else check_target(arguments.out)
    found = replay(
        Run(find_run(arguments.run)),
        update,
        step=step,
        strict=arguments.strict,
        trust=trusting(arguments.trust),
        progress=True,
    )
    out = sys.stderr if arguments.json else sys.stdout
    print(fit(describe(found), out), file=out)
    if target is not None:
        print(f"saved {found.save(target)}", file=out)
    if arguments.json:
        print(json.dumps(as_dict(found)))
    return 1 if found.exact is False else 0
