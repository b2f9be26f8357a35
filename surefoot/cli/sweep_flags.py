"""The flags that describe a grid of runs, for every command that trains one (`sweep`, `compare`)."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from surefoot.algorithms import ALGORITHMS
from surefoot.cli.flags import Parser, add_settings, add_trust
from surefoot.cli.own_flags import flags_of
from surefoot.cli.pools import add_places
from surefoot.cli.train import explain_unknown
from surefoot.settings import Option
from surefoot.sweep.grid import SEEDS, Grid, parse_seeds, parse_vary, read_grids, with_flags
from surefoot.training.config.run_config import DEFAULT_ALGO

NOT_FOR_MANY = ("seed",)
INSTEAD = {
    "--seed": "a sweep has several: --seeds 0..9",
    "--run-dir": "every run gets a directory of its own; --out names the folder of all",
    "--config": "settings of a grid go into its own file: surefoot sweep GRID.toml (docs/sweeps.md)",
    "--like": "settings of a grid go into its own file: surefoot sweep GRID.toml (docs/sweeps.md)",
}


def algorithms_of(words: Sequence[str], grids: Sequence[Grid] = ()) -> tuple[str, ...]:
    """The algorithms decide which flags exist, so they are found before the flags are parsed."""
    first = Parser(prog="surefoot", add_help=False)
    first.add_argument("--algo", nargs="+", action="extend", default=[])
    found, _ = first.parse_known_args(list(words))
    named = split_names(found.algo) or [algo for grid in grids for algo in grid.algos]
    return tuple(dict.fromkeys(named)) or (DEFAULT_ALGO,)


def split_names(words: Sequence[str]) -> list[str]:
    """`ppo trpo` or `ppo,trpo`."""
    return [name for word in words for name in (word.split(",") if ":" not in word else [word]) if name]


def explain_for_many(algo: str, command: str, flag: str, value: str | None, typed: Namespace) -> str | None:
    """Explains a flag that no algorithm of the sweep has; None if we do not know it."""
    if flag in INSTEAD:
        return f"unknown flag {flag}; {INSTEAD[flag]}"
    one = Namespace(**{**vars(typed), "env": next(iter(typed.env or ()), None), "algo": algo, "like": None})
    one.preset = typed.preset or "auto"
    return explain_unknown(algo, flag, value, one)


def add_grid(parser: Parser, algos: Sequence[str]) -> None:
    """`--env`, `--algo`, `--seeds`, `--vary`, `--preset`, and every setting of the algorithms."""
    grid = parser.add_argument_group("the runs: every combination of these")
    grid.add_argument("--env", nargs="+", action="extend", metavar="ENV", help="environments")
    names = f"algorithms: {', '.join(ALGORITHMS)}, or file.py:Class [{DEFAULT_ALGO}]"
    grid.add_argument("--algo", nargs="+", action="extend", metavar="ALGO", help=names)
    grid.add_argument("--seeds", nargs="+", metavar="N..M", help=f"seeds: 0..9, 0,3,7 or 0 1 2 [{SEEDS}]")
    grid.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help="try each of these values of a setting (may be repeated); semicolons separate values that have commas",
    )
    grid.add_argument("--preset", help="name of a preset, or none [the tuned one for each env and algorithm, if any]")
    known: dict[str, Option] = {}
    for algo in algos:
        known = {**flags_of(algo), **known}
    add_settings(parser, [option for name, option in known.items() if name not in NOT_FOR_MANY])


def grid_parser(command: str, algos: Sequence[str], usage: str, description: str) -> Parser:
    """A parser whose unknown flags are explained as those of `surefoot train` are."""
    return Parser(
        explain_unknown=partial(explain_for_many, algos[0], command),
        prog=f"surefoot {command}",
        usage=usage,
        description=description,
    )


def typed_grids(arguments: Namespace, parser: Parser, file: Path | None = None) -> list[Grid]:
    """The grids of a file, overridden by what was typed, or the typed grid alone."""
    settings = {name: vars(arguments)[name] for name in parser.settings if name in vars(arguments)}
    envs = tuple(dict.fromkeys(arguments.env or ()))
    algos = tuple(dict.fromkeys(split_names(arguments.algo or ())))
    seeds = parse_seeds(arguments.seeds) if arguments.seeds else ()
    vary = parse_vary(arguments.vary)
    grids = read_grids(file) if file is not None else [Grid(envs=envs)]
    return [
        with_flags(grid, envs=envs, algos=algos, seeds=seeds, preset=arguments.preset, settings=settings, vary=vary)
        for grid in grids
    ]


def is_typed(arguments: Namespace, parser: Parser) -> bool:
    """Whether any typed flag describes runs."""
    named = any((arguments.env, arguments.algo, arguments.seeds, arguments.vary, arguments.preset))
    return named or any(name in vars(arguments) for name in parser.settings)


def add_pool(parser: argparse.ArgumentParser) -> None:
    """How the runs are carried out."""
    pool = parser.add_argument_group("how they run")
    pool.add_argument("--jobs", metavar="N", help="runs at the same time [one per core]")
    add_places(pool)
    pool.add_argument("--dry-run", action="store_true", help="print the command of every run, then stop")
    pool.add_argument("--quiet", action="store_true", help="show no progress")
    add_trust(pool)
