"""`surefoot train ENV --seeds 0..255`: runs that differ in seeds and perhaps in numbers, at once on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from surefoot.errors import SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.training.build.checks import check_memory_for
from surefoot.training.build.envs import settle_workers
from surefoot.training.build.own_encoders import load_encoder
from surefoot.training.config.unused import check_timeout
from surefoot.training.life.launch import can_be_filmed, new_directory, resume_flags, settled
from surefoot.training.life.population import Population, joined, new_folder, place_of, require_unseen
from surefoot.training.life.processes import together as processes
from surefoot.training.life.rebuild import load_callback, other_envs, prepare_process
from surefoot.training.life.session import Session, greeting, say
from surefoot.training.life.signals import Interrupted, Signals, signals_handled
from surefoot.training.life.trust import Trust, require_trust
from surefoot.training.loop.global_generators import seeded_globals
from surefoot.training.loop.state import start_from
from surefoot.training.reports.population import PopulationProgress
from surefoot.training.reports.screen import fit
from surefoot.training.trainer import Trainer

if TYPE_CHECKING:
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.reports.result import Result


def train_seeds(
    configs: TrainConfig | Mapping[str, TrainConfig],
    seeds: Sequence[int],
    *,
    run_dir: str | Path | None = None,
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
    trust: Trust = False,
    evaluate: bool = True,
) -> list[Result]:
    """Train a resolved config with each of these seeds, all at once. Everything is checked before anything is written.

    `configs`: may be several, by name. `run_dir`: the folder of the runs, which are then `s0`, `s1` and so on, or
    `NAME-s0` of several configs. The rest is as in `train_config`.
    """
    configs = configs if isinstance(configs, Mapping) else {"": configs}
    config = next(iter(configs.values()))  # what is asked of this one holds for all
    for each in configs.values():
        require_trust(each, trust, "a file (--config, --like or --init-from)")
    with processes() as group:
        if group.size > 1:
            raise UsageError(f"several seeds are trained at once by one process, and this run has {group.size}")
    check_timeout(config)
    _require_gpu(config, seeds, varied=len(configs) > 1)
    RunDirectory.check_place(run_dir)
    with ExitStack() as leaving:
        trainers = _trainers(configs.values(), seeds, own_process, leaving)
        together = joined(trainers)
        folder = new_folder(config) if run_dir is None and len(configs) > 1 else run_dir
        places = [place_of(folder, name, seed) for seed in seeds for name in configs]
        sessions = [
            _session(trainer, place, to_stderr, evaluate, own_process, leaving)
            for trainer, place in zip(trainers, places, strict=True)
        ]
        out = sys.stderr if to_stderr else sys.stdout
        if progress:
            first = sessions[0]
            say(fit(greeting(first.trainer, first.directory), out), to_stderr)
            others = "seeds" if len(configs) == 1 else "seeds or settings"
            say(f"and {len(sessions) - 1} more with other {others} at once, in {_folder(sessions)}", to_stderr)
        with signals_handled(partial(_suspend, trainers), partial(_ask, trainers)) as signals:
            runs = [replace(session, signals=signals) for session in sessions]
            shown = PopulationProgress(to_stderr=to_stderr) if progress else None
            population = Population(trainers, together, [run.turns() for run in runs], shown)
            population.train()
    return _results(population, runs, signals, progress=progress, to_stderr=to_stderr)


def _require_gpu(config: TrainConfig, seeds: Sequence[int], *, varied: bool) -> None:
    asked = str(config.run.device).startswith("cuda")
    if not asked or not torch.cuda.is_available():
        why = "and PyTorch sees no CUDA device here" if asked else "add --device cuda"
        span = f"{seeds[0]}..{seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        raise UsageError(
            f"several runs are trained at once on a GPU only: {why}. On the CPU, `surefoot sweep --env "
            f"{config.env.env} --seeds {span}`{' with the same --vary' if varied else ''} trains them side by side"
        )


def _trainers(
    configs: Collection[TrainConfig], seeds: Sequence[int], own_process: bool, leaving: ExitStack
) -> list[Trainer]:
    """One for each seed and config. The first one shows whether the others are worth making."""
    found: list[Trainer] = []
    for seed, config in product(seeds, configs):
        own = settled(replace(config, run=replace(config.run, seed=seed)))
        if not found:
            prepare_process(own, own_process)
        own, _ = settle_workers(own, None)
        trainer = Trainer(own, seed, encoder=load_encoder(own.policy), own_process=own_process)
        leaving.callback(trainer.envs.close)
        trainer.globals = partial(seeded_globals, seed)  # as in a process of its own
        if not found:
            joined([trainer])
            check_memory_for(len(seeds) * len(configs), trainer.footprint, trainer.device)
        found.append(trainer)
    return found


def _session(
    trainer: Trainer, place: Path | None, to_stderr: bool, evaluate: bool, own_process: bool, leaving: ExitStack
) -> Session:
    """The run around a trainer, with its directory."""
    config = trainer.config
    own = [load_callback(path) for path in config.run.callbacks]
    require_unseen(own)
    notes = start_from(trainer, Path(config.run.init_from)) if config.run.init_from else []
    envs = other_envs(trainer, None, ready_made=False)
    directory = new_directory(config, trainer, place, env_from_python=False)
    leaving.callback(directory.unlock)
    for note in notes:
        directory.note(note)
    flags, filmed = resume_flags(directory, config), can_be_filmed(trainer)
    session = Session(trainer, directory, *envs, own, False, to_stderr, own_process, flags, filmed)
    return replace(session, evaluate=evaluate)


def _suspend(trainers: Sequence[Trainer], reason: str) -> None:
    for trainer in trainers:
        trainer.suspend(reason)


def _ask(trainers: Sequence[Trainer], reason: str) -> None:
    for trainer in trainers:
        trainer.saving.ask(reason)


def _folder(sessions: Sequence[Session]) -> Path:
    return sessions[0].directory.path.parent


def _results(
    population: Population, sessions: Sequence[Session], signals: Signals, *, progress: bool, to_stderr: bool
) -> list[Result]:
    """The results of all runs, or an error that says which have none."""
    found = [population.results[agent] for agent in range(len(sessions))]
    failed = [(session, x) for session, x in zip(sessions, found, strict=True) if isinstance(x, Exception)]
    if signals.received or any(isinstance(x, Interrupted) for x in found):
        raise Interrupted(
            f"{len(sessions)} runs in {_folder(sessions)}; everything is saved. Each continues by itself: "
            f"surefoot resume {sessions[0].directory.path}",
            128 + signals.received,
        )
    if failed:
        session, error = failed[0]
        listed = ", ".join(session.directory.path.name for session, _ in failed[:10])
        more = f" and {len(failed) - 10} others" if len(failed) > 10 else ""
        raise SurefootError(
            f"{len(failed)} of {len(sessions)} runs failed ({listed}{more}); the others are complete. The first, "
            f"{session.directory.path}: {error}"
        ) from error
    results: list[Result] = found  # type: ignore[assignment] # nothing else is left
    if progress:
        say(f"{len(results)} runs are done, in {_folder(sessions)}. {_next(sessions)}", to_stderr)
    return results


def _next(sessions: Sequence[Session]) -> str:
    return f"Next: surefoot plot {_folder(sessions)}"
