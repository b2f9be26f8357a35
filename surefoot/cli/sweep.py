"""`surefoot sweep`: many runs at once, resumable from their folder."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from time import perf_counter

from surefoot import __version__
from surefoot.cli.flags import Parser, add_json, trusting
from surefoot.cli.pools import Needs, PoolChoice, choose_pool, refuse_running_elsewhere
from surefoot.cli.sweep_flags import add_grid, add_pool, algorithms_of, grid_parser, is_typed, typed_grids
from surefoot.errors import UsageError
from surefoot.runs.directory import shell_path
from surefoot.sweep.carry_out import carry_out, track
from surefoot.sweep.display import counts, make_watcher, several
from surefoot.sweep.folder import SweepFolder, holding, usual_folder
from surefoot.sweep.grid import Grid, read_grids
from surefoot.sweep.plan import Plan, check_envs, expand
from surefoot.sweep.pool import Pool
from surefoot.sweep.progress import Tracked
from surefoot.text import print
from surefoot.training.life.signals import Interrupted
from surefoot.training.life.trust import Trust
from surefoot.training.reports.screen import fit

DESCRIPTION = """Train many runs, several at a time. Run the same command again, or name the folder, to continue.

examples:
  surefoot sweep --env CartPole-v1 --algo ppo trpo --seeds 0..9
      20 runs, as many at a time as there are cores
  surefoot sweep --env Pendulum-v1 --vary gamma=0.9,0.95 --vary num_envs=4,8
      every combination of the values, with five seeds each
  surefoot sweep --env CartPole-v1 --seeds 0..2 --total-steps 20k --dry-run
      show the commands, and start nothing
  surefoot sweep grid.toml --out my-sweep
      the grid of a file (docs/sweeps.md)
  surefoot sweep my-sweep
      finish the sweep in this folder
"""


@dataclass(frozen=True)
class Sweep:
    """What a command asks for."""

    grids: list[Grid]
    plan: Plan
    folder: SweepFolder
    new: bool  # the grids are to be added to the folder's plan
    command: Sequence[str] = ()  # continues it after an interruption; none: `surefoot sweep FOLDER`
    place: Sequence[str] = ()  # the flags that choose where it runs

    @property
    def again(self) -> str:
        """What to type to continue, ready to be pasted."""
        if self.command:
            return join(["surefoot", *self.command])
        return " ".join(["surefoot sweep", shell_path(self.folder.path), *map(quote, self.place)])


def run(words: Sequence[str]) -> int:
    source = _source(words)
    algos = algorithms_of(words, read_grids(source) if source is not None and not Parser.describing else ())
    parser = _parser(algos)
    arguments = parser.parse_args(words)
    trust = trusting(arguments.trust)
    asked = _asked(arguments, parser, trust)
    runs = train(asked, arguments)
    if runs is None:
        return 0
    if arguments.json:
        print(json.dumps(summary(asked.folder, runs)))
    return int(any(one.stage == "failed" for one in runs))


def _source(words: Sequence[str]) -> Path | None:
    """The file with the grid, if a word names one or its folder: the algorithms in it determine the flags."""
    for place in (Path(word) for word in words if not word.startswith("-")):
        file = SweepFolder(place).plan if place.is_dir() else place
        if file.suffix == ".toml" and file.is_file():
            return file
    return None


def _parser(algos: Sequence[str]) -> Parser:
    usage = "surefoot sweep [GRID.toml | FOLDER] [--env ENV …] [--algo ALGO …] [flags]"
    parser = grid_parser("sweep", algos, usage, DESCRIPTION)
    parser.add_argument("source", nargs="?", metavar="FILE.toml|DIR", help="a grid, or the folder of a sweep")
    parser.add_argument("--out", metavar="DIR", help="the folder of all runs [runs/sweeps/ENVS_ALGOS]")
    add_json(parser)
    add_pool(parser)
    add_grid(parser, algos)
    return parser


def asked_for(grids: list[Grid], out: str | None, source: Path | None = None, trust: Trust = False) -> Sweep:
    """The sweep of grids that were typed, or that a file describes, in this folder or the usual one."""
    folder = SweepFolder(Path(out) if out else usual_folder(grids))
    return Sweep(grids, expand(grids, source=None if source is None else str(source), trust=trust), folder, new=True)


def _asked(arguments: Namespace, parser: Parser, trust: Trust) -> Sweep:
    """Everything is resolved and checked here, before the first run starts."""
    source = None if arguments.source is None else Path(arguments.source)
    if source is not None and source.is_dir():
        if is_typed(arguments, parser) or arguments.out:
            raise UsageError(
                f"{source} has its own plan; to add runs to it, pass the folder as --out: "
                f"surefoot sweep --env … --out {shell_path(source)}"
            )
        folder = SweepFolder(source)
        grids = folder.read()
        return Sweep(grids, expand(grids, source=str(folder.plan), trust=trust), folder, new=False)
    if source is not None and not source.is_file():
        raise UsageError(
            f"there is no file or folder {source}; environments are named with a flag: surefoot sweep --env {source}"
        )
    return asked_for(typed_grids(arguments, parser, source), arguments.out, source, trust)


def train(asked: Sweep, arguments: Namespace) -> list[Tracked] | None:
    """Carry it out; returns None for `--dry-run`. Raises Interrupted after a signal, when every run has been saved."""
    out = sys.stderr if arguments.json else sys.stdout
    choice = choose_pool(arguments)
    asked = replace(asked, place=choice.words)
    for note in asked.plan.notes:
        print(fit(f"note: {note}", out), file=out)
    if arguments.dry_run:
        _show(asked, arguments.json)
        return None
    with holding(asked.folder):
        refuse_running_elsewhere(arguments, asked.folder.path)
        runs = track(asked.folder, asked.plan)
        waiting = [run for run in runs if run.stage == "waiting"]
        check_envs(run.run for run in waiting)
        # A cluster that cannot be reached must leave the plan as it is.
        made = closing(choice.make(Needs.of(runs), asked.folder.path)) if waiting else nullcontext()
        with made as pool:
            written = asked.folder.version()
            if asked.new:
                asked.folder.remember(asked.grids)
            if not arguments.quiet:
                print(fit(_greeting(asked, runs, len(waiting), choice), out), file=out, flush=True)
                if written not in (None, __version__):
                    print(f"note: the sweep began with surefoot {written}; this is {__version__}", file=out)
            if pool is not None:
                _carry_out(asked, runs, pool, arguments)
    if not arguments.quiet:
        print(fit(_farewell(asked, runs), out), file=out)
    elif any(run.stage == "failed" for run in runs):  # --quiet hides progress, not the reason for the exit code
        print(fit(_farewell(asked, runs), sys.stderr), file=sys.stderr)
    return runs


def _carry_out(asked: Sweep, runs: list[Tracked], pool: Pool, arguments: Namespace) -> None:
    started = perf_counter()
    watcher = make_watcher(sys.stderr if arguments.json else sys.stdout, quiet=arguments.quiet)
    number = carry_out(runs, pool, watcher, ["--trust"] if arguments.trust else [])
    if number:
        raise Interrupted(
            f"after {perf_counter() - started:.0f} s: {counts(runs)}; every run is saved. To continue:\n{asked.again}",
            128 + number,
        )


def _greeting(asked: Sweep, runs: Sequence[Tracked], waiting: int, choice: PoolChoice) -> str:
    cut_off = sum(run.stage == "waiting" and run.before == "cut off" for run in runs)
    done = sum(run.before == "done" for run in runs)
    parts = [f"{several(len(runs))} in {asked.folder.path}"]
    parts += [f"{done} done already"] if done else []
    parts += [f"{cut_off} to be continued"] if cut_off else []
    parts += [f"{min(choice.jobs, waiting)} at a time"] if waiting and choice.jobs else []
    parts += [f"on {choice.place}"] if waiting and choice.place else []
    return ", ".join(parts)


def _farewell(asked: Sweep, runs: Sequence[Tracked]) -> str:
    lines = [counts(runs)]
    lines += [f"failed: {run.directory.path}: {run.error}" for run in runs if run.stage == "failed"]
    if any(run.stage in ("unfinished", "failed") for run in runs):
        lines.append(f"to continue: {asked.again}")
    elif not asked.command:  # `surefoot compare` goes on by itself
        lines.append(f"compare: surefoot compare {shell_path(asked.folder.path)}")
    return "\n".join(lines)


def _show(asked: Sweep, as_json: bool) -> None:
    """`--dry-run`."""
    place = asked.folder.path
    commands = [join(["surefoot", *run.words, f"--run-dir={place / run.name}"]) for run in asked.plan.runs]
    print(*commands, f"{several(len(commands))} in {place}", sep="\n", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps({"folder": str(place), "runs": commands}))


def summary(folder: SweepFolder, runs: Sequence[Tracked]) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "folder": str(folder.path),
        **{stage: sum(run.stage == stage for run in runs) for stage in ("done", "failed", "unfinished")},
        "skipped": sum(run.before == "done" for run in runs),
        "runs": [run.summary() for run in runs],
    }
