"""`surefoot tune ENV` and `surefoot.tune`: search for better settings, resumable from its folder."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TextIO

from surefoot.cli.flags import Parser, add_json, add_settings, trusting
from surefoot.cli.own_flags import flags_of
from surefoot.cli.pools import LOCAL, OWN_FLAGS, Needs, choose_pool, cores_of, refuse_running_elsewhere
from surefoot.cli.sweep_flags import add_pool
from surefoot.cli.train import explain_unknown
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.directory import shell_path
from surefoot.settings import coerce
from surefoot.sweep.display import make_watcher
from surefoot.sweep.folder import holding
from surefoot.sweep.plan import as_text, point_of
from surefoot.text import print
from surefoot.training.config.run_config import DEFAULT_ALGO
from surefoot.training.life.signals import Interrupted
from surefoot.training.life.trust import Trust, require_word
from surefoot.training.reports.screen import fit
from surefoot.tuning.budget import DEFAULT as DEFAULT_BUDGET
from surefoot.tuning.budget import Budget, Stopwatch, parse_budget
from surefoot.tuning.folder import TuneFolder, Wish, usual_place
from surefoot.tuning.journal import require_optuna
from surefoot.tuning.outcome import Tuned
from surefoot.tuning.rungs import make_rungs, round_size
from surefoot.tuning.space import as_choices, parse_search, space_of, with_short_rollouts
from surefoot.tuning.task import Task, make_task, usual_steps
from surefoot.tuning.trial_runner import TrialRunner
from surefoot.tuning.tune import carry_out_tune
from surefoot.user_code import names_code

SEEDS, VALIDATION_SEEDS = 3, 5
MOST_SEEDS, MOST_SEED = 1_000, 10_000
NOT_FOR_TRIALS = {
    "max_time": "--budget limits the time of the whole tune",
    "name": "every run is named after its trial",
    "run_dir": "every run gets a directory of its own; --out names the folder of all",
    "config": "settings of every trial are given as flags",
    "preset": "trials begin with the library's defaults; the shipped preset, if there is one, is the second trial",
}
DESCRIPTION = """Search for settings that are better than the defaults. Trials are runs with several seeds; those that
look bad after few steps are dropped. What did best is checked on fresh seeds beside the default, and written as a
preset only if it is better. Run the same command again, or name the folder, to continue.

examples:
  surefoot tune LunarLander-v3 --budget 1h
      an hour, including the check on fresh seeds
  surefoot tune my/env.py:MyEnv --budget 200-trials --total-steps 300k
      200 trials; the preset will be for 300k steps
  surefoot tune CartPole-v1 --gamma 0.98 --search learning_rate=1e-4..1e-2
      gamma stays as it is; another range for the learning rate
  surefoot tune runs/tunes/CartPole-v1_ppo
      finish the tune in this folder
"""


@dataclass(frozen=True)
class Asked:
    """What a command or a call asks for."""

    folder: TuneFolder
    task: Task

    @property
    def budget(self) -> Budget:
        return parse_budget(self.task.wish.budget)


def run(words: Sequence[str]) -> int:
    parser = _parser(_algorithm_of(words))
    arguments = parser.parse_args(words)
    settings = {name: vars(arguments)[name] for name in parser.settings if name in vars(arguments)}
    asked = _asked(arguments, settings, parse_search(arguments.search), trusting(arguments.trust))
    tuned = _tune(asked, arguments)
    if tuned is not None:
        if arguments.quiet and not arguments.json:
            print(fit(tuned.verdict))
        if arguments.json:
            print(json.dumps(tuned.as_dict()))
    return 0


def tune(
    env: str | Path,
    algo: str | None = None,
    *,
    budget: str | float | None = None,
    seeds: int | None = None,
    validation_seeds: int | None = None,
    search: Mapping[str, str | Sequence[object]] | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    on: str = LOCAL,
    progress: bool = True,
    trust: bool = False,
    **settings: object,
) -> Tuned:
    """Search for settings that are better than the defaults, as `surefoot tune` does. Needs the extra `tune`.

    `env` is a name (trials are processes of their own, so it cannot be an object), or the folder of a tune to continue.
    `budget`: "30m", "200-trials" or seconds. `search`: by setting, a range ("1e-4..1e-2:log") or a list of values.
    `settings` are the same in every trial. Call it again with the same arguments to continue.
    """
    if not isinstance(env, (str, Path)):
        raise UsageError("tune() trains in processes of its own: name the env, or its function as file.py:Factory")
    if not isinstance(algo, (str, type(None))):
        raise UsageError("tune() trains in processes of its own: name the algorithm, or its class as file.py:Class")
    for name in settings:
        if name in NOT_FOR_TRIALS:
            raise UsageError(f"tune() has no {name}; {NOT_FOR_TRIALS[name]}")
    own = {flag.removeprefix("--").replace("-", "_"): None for flag in OWN_FLAGS}
    typed = {"env": str(env), "algo": algo, "budget": budget, "seeds": seeds, "validation_seeds": validation_seeds}
    place = {"jobs": jobs, "on": on, "quiet": not progress, "dry_run": False, "json": False, "trust": trust, **own}
    arguments = Namespace(**typed, **place, seed=seed, out=None if out is None else str(out))
    ranges = {name: one if isinstance(one, str) else as_choices(one) for name, one in (search or {}).items()}
    tuned = _tune(_asked(arguments, settings, ranges, trust), arguments)
    assert tuned is not None
    return tuned


def _algorithm_of(words: Sequence[str]) -> str:
    """The algorithm decides which flags exist, so it is found before the flags are parsed."""
    first = Parser(prog="surefoot", add_help=False)
    first.add_argument("--algo")
    found, _ = first.parse_known_args(list(words))
    algo = found.algo or DEFAULT_ALGO
    flags_of(algo)
    return str(algo)


def _explain(algo: str, flag: str, value: str | None, typed: Namespace) -> str | None:
    name = flag.removeprefix("--").replace("-", "_")
    if name in NOT_FOR_TRIALS:
        return f"unknown flag {flag}; {NOT_FOR_TRIALS[name]}"
    if name == "vary":
        return "unknown flag --vary; ranges are given with --search: --search gamma=0.9,0.99"
    return explain_unknown(algo, flag, value, Namespace(**{**vars(typed), "algo": algo, "preset": "none"}))


def _parser(algo: str) -> Parser:
    parser = Parser(
        explain_unknown=partial(_explain, algo),
        prog="surefoot tune",
        usage="surefoot tune ENV|FOLDER [--budget 30m|200-trials] [--algo ALGO] [flags]",
        description=DESCRIPTION,
    )
    parser.add_argument("env", metavar="ENV|DIR", help="the environment, or the folder of a tune to continue")
    parser.add_argument("--algo", metavar="ALGO", help=f"the algorithm, or your own: file.py:Class [{DEFAULT_ALGO}]")
    parser.add_argument(
        "--budget", metavar="TIME|N-trials", help=f"how long to search: 30m, 2h, 200-trials [{DEFAULT_BUDGET}]"
    )
    parser.add_argument("--seeds", metavar="N", help=f"seeds per trial; trials that survive get more [{SEEDS}]")
    parser.add_argument(
        "--validation-seeds", metavar="N", help=f"fresh seeds on which the result is checked [{VALIDATION_SEEDS}]"
    )
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="NAME=LOW..HIGH|A,B",
        help="search these values of a setting (may be repeated); LOW..HIGH:log for orders of magnitude",
    )
    parser.add_argument("--seed", metavar="N", help="seed of the search and of its runs [0]")
    parser.add_argument("--out", metavar="DIR", help="the folder of the tune [runs/tunes/ENV_ALGO]")
    add_json(parser)
    add_pool(parser)
    add_settings(parser, [one for name, one in flags_of(algo).items() if name not in ("seed", *NOT_FOR_TRIALS)])
    return parser


def _asked(arguments: Namespace, settings: Mapping[str, object], search: Mapping[str, str], trust: Trust) -> Asked:
    """Everything is resolved and checked here, before the first run starts."""
    place = TuneFolder(Path(arguments.env))
    if place.wish.is_file():
        typed = (arguments.algo, arguments.seeds, arguments.validation_seeds, arguments.seed, arguments.out, search)
        if settings or any(typed):
            raise UsageError(f"{place.path} has its own settings; of these, only --budget can change")
        wish = place.read()
        if names_code(wish.algo):
            require_word([f"algo = {wish.algo}"], trust, str(place.wish))
        if arguments.budget is not None:
            wish = replace(wish, budget=str(arguments.budget))
        return Asked(place, make_task(wish, source=str(place.wish), trust=trust))
    if place.path.is_dir() and (os.sep in arguments.env or arguments.env in (os.curdir, os.pardir)):
        place.read()  # says what is missing
    wish = _wish(arguments, settings, search)
    folder = TuneFolder(Path(arguments.out) if arguments.out else usual_place(wish.env, wish.algo))
    return Asked(folder, make_task(wish))


def _wish(arguments: Namespace, settings: Mapping[str, object], search: Mapping[str, str]) -> Wish:
    env, algo = str(arguments.env), str(arguments.algo or DEFAULT_ALGO)
    budget = str(DEFAULT_BUDGET if arguments.budget is None else arguments.budget)
    parse_budget(budget)
    steps = usual_steps(env, algo, settings.get("total_steps"))
    fixed = {name: value for name, value in settings.items() if name != "total_steps"}
    point = point_of(env, algo, "none", {**fixed, "total_steps": steps})
    usual = point.config.flat()
    first = make_rungs(steps, SEEDS, 0)[0]
    space = with_short_rollouts(space_of(algo, fixed, usual, search), usual, first.steps, search)
    return Wish(
        env=env,
        algo=algo,
        total_steps=steps,
        settings={name: point.written[name] for name in fixed},
        search={name: one.describe() for name, one in space.items()},
        seeds=_count("seeds", arguments.seeds, SEEDS, 2, MOST_SEEDS),
        validation_seeds=_count("validation_seeds", arguments.validation_seeds, VALIDATION_SEEDS, 3, MOST_SEEDS),
        seed=_count("seed", arguments.seed, 0, 0, MOST_SEED),
        budget=budget,
    )


def _count(name: str, typed: object, usual: int, least: int, most: int) -> int:
    number = usual if typed is None else coerce(name, typed, int)
    if not least <= number <= most:
        small = number < least
        raise UsageError(
            f"{name}={number} is too {'small' if small else 'large'}; "
            f"it must be at {f'least {least}' if small else f'most {most:,}'}"
        )
    return number


def _tune(asked: Asked, arguments: Namespace) -> Tuned | None:
    """Carry it out; returns None for `--dry-run`. Raises Interrupted after a signal, when every run has been saved."""
    out = sys.stderr if arguments.json else sys.stdout
    choice = choose_pool(arguments)
    if arguments.dry_run:
        _show(asked, out)
        if arguments.json:
            print(json.dumps({"folder": str(asked.folder.path), **asked.task.wish.as_toml()}))
        return None
    require_optuna()
    folder, wish = asked.folder, asked.task.wish
    again = " ".join([folder.again, *map(quote, choice.words)])
    with holding(folder):
        refuse_running_elsewhere(arguments, folder.path)
        folder.remember(wish)
        stopwatch = Stopwatch(folder.stopwatch)
        runner = TrialRunner(
            lambda: choice.make(_needs(asked.task, choice.jobs), folder.path),
            lambda: make_watcher(out, quiet=arguments.quiet),
            stopwatch,
            flags=["--trust"] if arguments.trust else [],
            again=again,
        )

        def say(line: str) -> None:
            if not arguments.quiet:
                print(fit(line, out), file=out, flush=True)

        number = len(asked.task.space)
        say(f"tuning {number} settings of {wish.algo} on {wish.env} in {folder.path}, budget {asked.budget}")
        try:
            tuned = carry_out_tune(folder, asked.task, asked.budget, runner, stopwatch, say)
        except OSError as error:
            raise SurefootError(f"{folder.path}: {error.strerror or error}; to continue: {again}") from error
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Interrupted):
                raise
            raise Interrupted(f"between two runs. To continue:\n{again}") from None  # no run was there to be stopped
        finally:
            runner.close()
    if tuned.preset is not None and not arguments.quiet:
        algo = f" --algo {quote(wish.algo)}" if names_code(wish.algo) else ""
        print(f"surefoot train {quote(wish.env)}{algo} --config {shell_path(tuned.preset)}", file=out)
    return tuned


def _needs(task: Task, jobs: int | None) -> Needs:
    """Room for the first rung of a round, or for as many runs as were asked for."""
    config = task.default.config
    return Needs(max(round_size(0) * task.wish.seeds, jobs or 0), cores_of(config), config.run.threads != "auto")


def _show(asked: Asked, out: TextIO) -> None:
    """`--dry-run`."""
    task, wish = asked.task, asked.task.wish
    print(f"{wish.algo} on {wish.env} in {asked.folder.path}, budget {asked.budget}; the search:", file=out)
    usual = task.default.config.flat()
    for name, dimension in task.space.items():
        print(fit(f"  {name:<24} {dimension.describe():<32} default {as_text(usual[name])}", out), file=out)
    for rung in task.rungs:
        print(f"rung {rung.number + 1}: {rung.steps:,} steps, seeds {rung.seeds[0]} to {rung.seeds[-1]}", file=out)
    fresh = task.fresh_seeds
    print(f"check: {wish.total_steps:,} steps, seeds {fresh[0]} to {fresh[-1]}", file=out)
