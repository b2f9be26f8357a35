"""Starts a run from a config, or resumes one from its directory. Everything is checked before the first env step."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import gymnasium as gym

from surefoot.engine.group import ALONE
from surefoot.envs.backends import backend_of
from surefoot.errors import CheckpointError, UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import find_checkpoint, has_checkpoints, point_best, read_verified
from surefoot.runs.files import write_atomic, write_json
from surefoot.runs.locate import locate_checkpoint
from surefoot.runs.manifest import build_manifest
from surefoot.settings import coerce
from surefoot.training.build.envs import settle_workers
from surefoot.training.build.own_encoders import load_encoder
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import TrainConfig
from surefoot.training.config.toml_files import to_toml
from surefoot.training.config.unused import check_timeout
from surefoot.training.life.horizon import set_horizon
from surefoot.training.life.processes import (
    begun_before,
    facts_of,
    follow,
    label_of,
    require_alike,
    tell,
    together,
    told,
)
from surefoot.training.life.rebuild import (
    computed_with,
    load_callback,
    other_envs,
    prepare_process,
    rebuild,
    stored_config,
    what_differs,
)
from surefoot.training.life.session import Session, greeting, no_way_out, say, summarize
from surefoot.training.life.trust import Trust, needs_trust, require_trust, sign
from surefoot.training.loop.state import Restored, restore, start_from
from surefoot.training.reports.result import describe_result
from surefoot.training.reports.screen import fit
from surefoot.training.trainer import Trainer
from surefoot.user_code import is_from_python

if TYPE_CHECKING:
    from surefoot.engine.group import Group
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.reports.result import Result
    from surefoot.types import GymEnv, GymVectorEnv

    EnvLike: TypeAlias = str | Callable[..., GymEnv] | GymVectorEnv


def train_config(
    config: TrainConfig,
    *,
    env: EnvLike | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
    trust: Trust = False,
    encoder: EncoderClass | None = None,
    evaluate: bool = True,
) -> Result:
    """Train a resolved config. Everything is checked and the directory created before the first env step.

    `encoder`: a class passed in Python.
    `evaluate`: whether to evaluate at the end.
    `own_process`: the process is ours alone, so seed the global generators that a careless env may use.
    `progress`: show the header, progress and the result.
    """
    require_trust(config, trust, "a file (--config, --like or --init-from)")
    with together() as group:
        require_alike(group, config.flat())
        label = label_of(config)
        if (begun := begun_before(group, label, run_dir)) is not None:
            show = {"progress": progress, "to_stderr": to_stderr, "own_process": own_process}
            return _resume(group, begun, {}, strict=False, trust=trust, callbacks=callbacks, **show)
        given = (env, run_dir, callbacks, progress, to_stderr, own_process, encoder, evaluate)
        return _train(group, label, config, *given)


def _train(
    group: Group,
    label: str | None,
    config: TrainConfig,
    env: EnvLike | None,
    run_dir: str | Path | None,
    callbacks: Sequence[Callback],
    progress: bool,
    to_stderr: bool,
    own_process: bool,
    encoder: EncoderClass | None,
    evaluate: bool,
) -> Result:
    if group.index == 0:
        RunDirectory.check_place(run_dir)
    config = settled(config, group)
    vector = env if isinstance(env, gym.vector.VectorEnv) else None
    factory = env if callable(env) and vector is None and not isinstance(env, str) else None
    check_timeout(config)
    prepare_process(config, own_process)
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    config, chosen = settle_workers(config, vector or factory, group)
    assert config.run.seed is not None
    made = encoder or load_encoder(config.policy)
    trainer = Trainer(
        config, config.run.seed, envs=vector, factory=factory, encoder=made, group=group, own_process=own_process
    )
    try:
        notes = chosen + (start_from(trainer, Path(config.run.init_from)) if config.run.init_from else [])
        envs = other_envs(trainer, factory, ready_made=vector is not None)
        trainer.original.end_copies()
        if group.index:
            return _followed(trainer, RunDirectory(Path(group.agree(""))), envs[0], own)
        from_python = vector is not None or factory is not None
        directory = new_directory(config, trainer, run_dir, label, env_from_python=from_python)
    except BaseException:
        trainer.envs.close()
        raise
    lost = from_python or encoder is not None or any(map(is_from_python, (config.run.algo, config.run.engine)))
    flags = None if lost else resume_flags(directory, config)
    session = Session(trainer, directory, *envs, own, progress, to_stderr, own_process, flags, can_be_filmed(trainer))
    return _run(replace(session, evaluate=evaluate), notes)


def new_directory(
    config: TrainConfig, trainer: Trainer, place: str | Path | None, label: str | None = None, *, env_from_python: bool
) -> RunDirectory:
    """The run's directory with its config and manifest, locked."""
    assert config.run.seed is not None
    written = to_toml(trainer.config)  # with the values that were chosen while building
    directory = RunDirectory.create(place, config.env.env, config.algo_name, config.run.seed, config.run.name)
    try:
        trainer.group.agree(str(directory.path))
        write_atomic(directory.config, written)
        write_json(directory.manifest, _manifest(config, trainer, label, env_from_python=env_from_python))
    except OSError as error:
        directory.unlock()
        raise UsageError(f"cannot write the run directory {directory.path}: {error.strerror}") from None
    except BaseException:
        directory.unlock()
        raise
    return directory


def _manifest(config: TrainConfig, trainer: Trainer, label: str | None, *, env_from_python: bool) -> dict[str, object]:
    """The manifest: what the run is, versions and machine, and its signature."""
    return build_manifest(
        env=config.env.env,
        env_from_python=env_from_python,
        name=config.run.name,
        tags=list(config.run.tags),
        algo=config.run.algo,
        seed=config.run.seed,
        preset=config.preset,
        **trainer.engines.as_dict(),
        **computed_with(trainer),
        signature=sign(trainer.config),
        **facts_of(trainer.group, label),
    )


def settled(config: TrainConfig, group: Group = ALONE) -> TrainConfig:
    """Fill in everything that was left open, so that `config.toml` repeats the run."""
    seed = group.agree(secrets.randbelow(2**31) if config.run.seed is None else config.run.seed)
    source = config.run.init_from
    folder = None if source is None else str(locate_checkpoint(source)[0])
    return replace(config, run=replace(config.run, seed=seed, init_from=folder))


def resume_flags(directory: RunDirectory, config: TrainConfig) -> str:
    """Flags that commands on this run need besides its directory."""
    return " --trust" if needs_trust(config, directory.config.absolute()) else ""


def can_be_filmed(trainer: Trainer) -> bool:
    """Whether `surefoot video` works on the run's env."""
    run, modes, name = trainer.config.run, trainer.envs.render_modes, trainer.config.env.env
    return run.eval_env is None and "rgb_array" in modes and backend_of(name).takes_render_mode(name)


def _run(session: Session, notes: Sequence[str]) -> Result:
    for note in notes:
        session.directory.note(note)
        if session.progress:
            say(note, session.to_stderr)
    out = sys.stderr if session.to_stderr else sys.stdout
    if session.progress:
        say(fit(greeting(session.trainer, session.directory), out), session.to_stderr)
    try:
        result = session.run()
    except SystemExit as left:
        raise no_way_out(left) from left
    finally:
        session.directory.unlock()
    if session.progress:
        say(describe_result(result, out), session.to_stderr)
        if unused := steps_left(session.trainer):
            say(fit(unused, out), session.to_stderr)
    return result


def steps_left(trainer: Trainer) -> str | None:
    """A note if much of the budget is left, because a rollout is never begun that might exceed it."""
    step, budget = trainer.step, trainer.budget
    if trainer.stop_reason is not None or step >= 0.9 * budget:
        return None
    most = trainer.collector.most_steps * trainer.group.size
    return f"note: {budget - step:,} of {budget:,} steps are left; another rollout may take up to {most:,}"


def _followed(
    trainer: Trainer, directory: RunDirectory, evaluation_env: MakeEnv | None, callbacks: Sequence[Callback]
) -> Result:
    """Train in a process that is not the first of the run, which writes the directory."""
    follow(trainer, evaluation_env, callbacks)
    return summarize(trainer, directory, None, resume=None, next_command=None)


def resume_directory(
    directory: RunDirectory,
    *,
    total_steps: int | str | None = None,
    max_time: float | str | None = None,
    strict: bool = False,
    trust: Trust = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
) -> Result:
    """Continue from the latest checkpoint that verifies (`strict`: only from the very latest)."""
    given = {"max_time": max_time, "total_steps": coerce("total_steps", total_steps, int | None)}
    given = {name: value for name, value in given.items() if value is not None}
    with together() as group:
        require_alike(group, given)
        show = {"progress": progress, "to_stderr": to_stderr, "own_process": own_process}
        return _resume(group, directory, given, strict=strict, trust=trust, callbacks=callbacks, **show)


def _resume(
    group: Group,
    directory: RunDirectory,
    given: Mapping[str, object],
    *,
    strict: bool,
    trust: Trust,
    callbacks: Sequence[Callback],
    progress: bool,
    to_stderr: bool,
    own_process: bool,
) -> Result:
    if group.index:
        with told(group) as seen:  # the first process has asked for trust
            config = stored_config(seen, True, given)
        trainer, own, _ = rebuild(config, own_process=own_process, group=group)
        try:
            evaluation_env, _ = other_envs(trainer, None, ready_made=False)
            _restore(trainer, directory, strict)
            _give_more(trainer, config)
        except BaseException:
            trainer.envs.close()
            raise
        return _followed(trainer, directory, evaluation_env, [*callbacks, *own])
    directory.refuse_links()
    config = stored_config(directory, trust, given)
    directory.lock()
    try:
        tell(group, directory)
        session, notes = _resumed(directory, config, strict, own_process, group)
    except BaseException:
        directory.unlock()
        raise
    callbacks = [*callbacks, *session.callbacks]
    return _run(replace(session, callbacks=callbacks, progress=progress, to_stderr=to_stderr), notes)


def _resumed(
    directory: RunDirectory, config: TrainConfig, strict: bool, own_process: bool, group: Group
) -> tuple[Session, list[str]]:
    trainer, own, chosen = rebuild(config, own_process=own_process, group=group)
    try:
        envs = other_envs(trainer, None, ready_made=False)
        restored, notes = _restore(trainer, directory, strict)
        notes += chosen
        notes += _give_more(trainer, config)
        directory.cut_logs(restored.log_sizes)
        if restored.lost_envs:
            lost = ", ".join(map(str, restored.lost_envs))
            why = " (an error ended the run in the middle of a rollout)" if restored.mid_rollout else ""
            notes.append(f"the open episodes of envs {lost} could not be restored{why}; they start afresh")
        notes += set_horizon(trainer, directory)
        notes += what_differs(trainer, directory)
    except BaseException:
        trainer.envs.close()
        raise
    flags, filmed = resume_flags(directory, config), can_be_filmed(trainer)
    session = Session(trainer, directory, *envs, own, own_process=own_process, resume_flags=flags, filmed=filmed)
    return replace(session, unwritten=restored.unwritten), notes


def _give_more(trainer: Trainer, config: TrainConfig) -> list[str]:
    """If a resume asks for more steps, train on, even if the run has reached its aim. Returns messages about it."""
    if config.origins["total_steps"] != "given":
        return []
    if trainer.budget < trainer.step:
        raise UsageError(f"total_steps={trainer.budget}, but the run is already at step {trainer.step:,}; give it more")
    notes = []
    if trainer.target.found is not None:
        trainer.target.go_on()
        notes.append(f"the target return of {config.run.target_return:g} is reached; training continues without it")
    if trainer.selection.exhausted:
        trainer.selection.go_on()
        notes.append(f"the patience of {config.run.patience} evaluations is exhausted; the count starts again")
    return notes


def _restore(trainer: Trainer, directory: RunDirectory, strict: bool) -> tuple[Restored, list[str]]:
    """Restore the checkpoint or, if the run was killed before its first one, start from the beginning."""
    group, found = trainer.group, None
    if group.index == 0:
        if not directory.checkpoints.is_dir():
            raise CheckpointError(f"{directory.checkpoints} is missing; every run begins with it")
        if has_checkpoints(directory.checkpoints):
            folder, passed_over = find_checkpoint(directory.checkpoints, strict=strict)
            found = (folder, passed_over, read_verified(folder) if group.size > 1 else None)
    found = group.agree(found)  # other processes may not see the directory
    if found is not None:
        folder, passed_over, content = found
        restored = restore(trainer, folder, content)
        if group.index:
            return restored, []
        best = trainer.selection.best
        point_best(directory.checkpoints, best[0] if best else None)
        notes = [f"resuming {directory.path} at step {trainer.step:,}"]
        return restored, notes + [f"skipped: {reason}" for reason in passed_over]
    notes = [f"{directory.path} has no checkpoint yet: starting from the beginning"]
    if trainer.config.run.init_from:
        notes += start_from(trainer, Path(trainer.config.run.init_from))
    sizes = {} if group.index else dict.fromkeys(directory.log_state()["sizes"], 0)
    return Restored([], sizes), notes
