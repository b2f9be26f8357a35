"""`surefoot resume RUN`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from surefoot.cli.flags import Parser, add_json, add_run, trusting
from surefoot.cli.ranks import add_ranks, launch, number_of
from surefoot.engine.group import check_share
from surefoot.engine.torchrun import is_first
from surefoot.runs import RunDirectory, find_run
from surefoot.runs.files import read_toml
from surefoot.text import print


def run(words: Sequence[str]) -> int:
    parser = Parser(
        prog="surefoot resume",
        description="Continue an interrupted run as if nothing had happened, or give a finished one more steps.",
    )
    add_run(parser)
    parser.add_argument(
        "--total-steps", metavar="N", help="new step budget, at which linear schedules end [the run's own]"
    )
    parser.add_argument(
        "--max-time", metavar="TIME", help="save and stop within this wall time (2h, 90m) [the run's own]"
    )
    add_ranks(parser)
    add_json(parser)
    arguments = parser.parse_args(words)
    ranks = number_of(arguments.ranks)
    # Only the first of several processes must see the run, which may be on another machine.
    found = find_run(arguments.run) if is_first() else RunDirectory(Path(arguments.run))
    if ranks > 1:
        num_envs = read_toml(found.config).get("num_envs")
        if isinstance(num_envs, int) and num_envs > 0:  # otherwise the file is damaged, which is said later
            check_share(num_envs, ranks)
        return launch(ranks, "resume", words)
    from surefoot.training.life.launch import resume_directory

    result = resume_directory(
        found,
        total_steps=arguments.total_steps,
        max_time=arguments.max_time,
        strict=arguments.strict,
        trust=trusting(arguments.trust),
        to_stderr=arguments.json,
        own_process=True,
    )
    if arguments.json and is_first():
        print(json.dumps(result))
    return 0
