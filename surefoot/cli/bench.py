"""`surefoot bench [ENV]`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from surefoot.cli.flags import Parser, add_json, add_settings
from surefoot.cli.own_flags import flags_of
from surefoot.cli.train import add_algo, algorithm_of, explain_unknown
from surefoot.engine.names import BUILT_IN, check_name
from surefoot.errors import UsageError
from surefoot.settings import Seconds, coerce
from surefoot.text import print
from surefoot.training.config.resolve import resolve
from surefoot.training.reports.screen import fit, width_of

DEFAULT_ENV = "CartPole-v1"
NO_PART = {  # not flags of bench: settings that do not affect training, and the engine, which bench compares
    "engine", "max_time", "callbacks", "trackers", "log_info", "eval_every", "selection_episodes", "eval_episodes",
    "target_return", "eval_max_steps", "eval_env", "eval_env_kwargs", "video_every",
}  # fmt: skip

DESCRIPTION = """Measure how fast this installation trains, and where the time goes. PyTorch and the compiled
kernels run in turn, for a few seconds each. Every flag of `surefoot train` that affects training works here too.

examples:
  surefoot bench
      PPO on CartPole-v1 with its preset; takes half a minute
  surefoot bench Pendulum-v1 --algo trpo --num-envs 16
      other settings
  surefoot bench --preset none --hidden-sizes 256 256
      larger networks
  surefoot bench --engines native --total-steps 500k
      one engine, for a number of steps instead of seconds

Steps per second are env steps divided by the wall time from the first step to the last update, logging and saving
included; ratios are taken within each round. With native envs, "act" includes their time. On a busy machine the range
is wide: check it before you trust the median.
"""


def run(words: Sequence[str]) -> int:
    algo = algorithm_of(words)
    arguments = vars(_parser(algo).parse_args(words))
    control = {key: arguments.pop(key) for key in ("env", "algo", "preset", "engines", "rounds", "seconds", "json")}
    rounds = coerce("rounds", control["rounds"], int)
    seconds = coerce("seconds", control["seconds"], Seconds)
    if rounds < 1 or seconds <= 0:
        raise UsageError("--rounds must be at least 1 and --seconds greater than 0")
    engines = list(dict.fromkeys(control["engines"]))
    for engine in engines:
        check_name(engine)
    env = control["env"] or (None if control["preset"] not in ("auto", "none") else DEFAULT_ENV)
    config = resolve(env, control["algo"], control["preset"], None, arguments)
    by_steps = "total_steps" in arguments
    out = sys.stderr if control["json"] else sys.stdout

    from surefoot.bench.measure import as_table, bench

    def say(line: str) -> None:
        print(fit(line, sys.stderr), file=sys.stderr, flush=True)

    each = f"{config.run.total_steps:,} steps" if by_steps else f"{seconds:g} s"
    times = f"{rounds} round{'s'[: rounds > 1]} of {each}"
    title = f"{config.run.algo} on {config.env.env}, preset {config.preset or 'none'}, {times}"
    say(title)
    found = bench(config, engines, rounds=rounds, seconds=None if by_steps else seconds, say=say)
    if not found["engines"]:
        raise UsageError("; ".join(found["missing"].values()))
    print(fit(f"\n{title}\n", out), *as_table(found, width_of(out)), sep="\n", file=out)
    for reason in found["missing"].values():
        print(fit(f"\n{reason}", out), file=out)
    if control["json"]:
        print(json.dumps(found))
    return 0


def _explain_unknown(algo: str, flag: str, value: str | None, typed: Namespace) -> str | None:
    if flag == "--engine":
        return "bench compares engines; choose them with --engines torch native"
    if flag.removeprefix("--").replace("-", "_") in NO_PART:
        return f"{flag} does not affect training, which is all that bench measures; drop it"
    typed.env = typed.env or DEFAULT_ENV
    return explain_unknown(algo, flag, value, typed)


def _parser(algo: str) -> Parser:
    parser = Parser(
        explain_unknown=partial(_explain_unknown, algo),
        prog="surefoot bench",
        usage="surefoot bench [ENV] [--algo ALGO] [--rounds N] [flags of surefoot train]",
        description=DESCRIPTION,
    )
    parser.add_argument("env", nargs="?", metavar="ENV", help=f"the environment [{DEFAULT_ENV}]")
    add_algo(parser)
    parser.add_argument(
        "--engines",
        nargs="+",
        metavar="ENGINE",
        default=["torch", "native"],
        help=f"engines to measure ({', '.join(BUILT_IN)}, file.py:Class); ratios are to the first [torch native]",
    )
    parser.add_argument("--rounds", default="3", metavar="N", help="how often each engine trains [3]")
    parser.add_argument(
        "--seconds", default="4", metavar="TIME", help="length of each run, unless --total-steps is given [4s]"
    )
    add_json(parser)
    add_settings(parser, (option for option in flags_of(algo).values() if option.name not in NO_PART))
    return parser
