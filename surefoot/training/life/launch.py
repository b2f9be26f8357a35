"""Starts a run from a config, or resumes one from its directory. Everything is checked before the first env step."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import gymnasium as gym
import torch

from surefoot.engine.names import BUILT_IN
from surefoot.engine.registry import uses_kernels
from surefoot.envs.backends import backend_of
from surefoot.envs.checks import blamed
from surefoot.errors import CheckpointError, UsageError
from surefoot.kernels import library
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import find_checkpoint, has_checkpoints, point_best
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.runs.manifest import build_manifest, different_machine, different_versions
from surefoot.settings import coerce
from surefoot.training.build.envs import settle_workers
from surefoot.training.build.own_encoders import load_encoder
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import TrainConfig, locate_checkpoint, read_outline, resolve
from surefoot.training.config.toml_files import to_toml
from surefoot.training.config.unused import check_timeout
from surefoot.training.evaluation.headless import go_headless
from surefoot.training.life.horizon import set_horizon
from surefoot.training.life.session import Session, evaluation_factory, greeting, no_way_out, say
from surefoot.training.life.trust import Trust, needs_trust, require_trust, sign
from surefoot.training.loop.global_generators import seed_globals
from surefoot.training.loop.state import Restored, restore, start_from
from surefoot.training.reports.result import describe_result
from surefoot.training.reports.screen import fit
from surefoot.training.reports.trackers import require_tracker
from surefoot.training.trainer import Trainer
from surefoot.user_code import is_from_python, load_object

if TYPE_CHECKING:
    from surefoot.envs.make import Factory
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
) -> Result:
    """Train a resolved config. Everything is checked and the directory created before the first env step.

    `encoder`: a class passed in Python.
    `own_process`: the process is ours alone, so seed the global generators that a careless env may use.
    `progress`: show the header, progress and the result.
    """
    require_trust(config, trust, "a file (--config, --like or --init-from)")
    RunDirectory.check_place(run_dir)
    config = settled(config)
    vector = env if isinstance(env, gym.vector.VectorEnv) else None
    factory = env if callable(env) and vector is None and not isinstance(env, str) else None
    check_timeout(config)
    _prepare_process(config, own_process)
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    config, chosen = settle_workers(config, vector or factory)
    assert config.run.seed is not None
    made = encoder or load_encoder(config.policy)
    trainer = Trainer(config, config.run.seed, envs=vector, factory=factory, encoder=made)
    trainer.own_process = own_process
    directory: RunDirectory | None = None
    try:
        notes = chosen + (start_from(trainer, Path(config.run.init_from)) if config.run.init_from else [])
        envs = other_envs(trainer, factory, ready_made=vector is not None)
        trainer.original.end_copies()
        written = to_toml(trainer.config)  # with the values that were chosen while building
        directory = RunDirectory.create(run_dir, config.env.env, config.algo_name, config.run.seed, config.run.name)
        directory.lock()
        trainer.run = directory
        from_python = vector is not None or factory is not None
        manifest = _manifest(config, trainer, env_from_python=from_python)
        try:
            write_atomic(directory.config, written)
            write_json(directory.manifest, manifest)
        except OSError as error:
            raise UsageError(f"cannot write the run directory {directory.path}: {error.strerror}") from None
    except BaseException:
        trainer.envs.close()
        if directory is not None:
            directory.unlock()
        raise
    lost = from_python or encoder is not None or any(map(is_from_python, (config.run.algo, config.run.engine)))
    flags = None if lost else resume_flags(directory, config)
    session = Session(trainer, directory, *envs, own, progress, to_stderr, own_process, flags, can_be_filmed(trainer))
    return _run(session, notes)


def _manifest(config: TrainConfig, trainer: Trainer, *, env_from_python: bool) -> dict[str, object]:
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
        **_computed_with(trainer),
        signature=sign(trainer.config),
    )


def _prepare_process(config: TrainConfig, own_process: bool) -> None:
    """Process-wide settings that must be in place before the first env is made."""
    assert config.run.seed is not None
    for name in config.run.trackers:
        require_tracker(name)
    if own_process:
        seed_globals(config.run.seed)
    if config.run.video_every is not None:
        go_headless()


def settled(config: TrainConfig) -> TrainConfig:
    """Fill in everything that was left open, so that `config.toml` repeats the run."""
    seed = secrets.randbelow(2**31) if config.run.seed is None else config.run.seed
    source = config.run.init_from
    folder = None if source is None else str(locate_checkpoint(source)[0])
    return replace(config, run=replace(config.run, seed=seed, init_from=folder))


def other_envs(
    trainer: Trainer, factory: Factory | None, *, ready_made: bool
) -> tuple[MakeEnv | None, Callable[[], GymEnv] | None]:
    """(makes envs to evaluate in, makes envs to film). A ready-made vector env cannot be made again."""
    config, spaces = trainer.config, (trainer.envs.observation_space, trainer.envs.action_space)
    if ready_made and config.run.eval_env is None:
        for name in ("eval_every", "target_return", "video_every"):
            if getattr(config.run, name) is not None:
                raise UsageError(f"{name} needs an env of its own beside the ready-made vector env; name an eval_env")
        return None, None
    film = None
    if config.run.video_every is not None:
        film = evaluation_factory(config, factory, spaces, render_mode="rgb_array")
        with blamed("close", config.env.env):
            film().close()
    return evaluation_factory(config, factory, spaces), film


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
    return result


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
    directory.refuse_links()
    given = {"max_time": max_time, "total_steps": coerce("total_steps", total_steps, int | None)}
    given = {name: value for name, value in given.items() if value is not None}
    config = stored_config(directory, trust, given)
    directory.lock()
    try:
        session, notes = _resumed(directory, config, strict, own_process)
    except BaseException:
        directory.unlock()
        raise
    session.callbacks = [*callbacks, *session.callbacks]
    session.progress, session.to_stderr = progress, to_stderr
    return _run(session, notes)


def stored_config(directory: RunDirectory, trust: Trust, given: Mapping[str, object]) -> TrainConfig:
    """The settings of a run that can be built again from its directory. `given` overrules them."""
    if read_json(directory.manifest).get("env_from_python"):
        raise UsageError(
            f"{directory.path} was trained on an env made in Python, which is not recorded; "
            "only runs on an env by id or by file can be resumed or replayed"
        )
    outline = read_outline(directory.config)
    require_trust(outline, trust, directory.path)
    config = resolve(preset=None, config_file=directory.config, overrides=given, agreed=outline.run.algo)
    if config.run.seed is None:
        raise CheckpointError(f"{directory.config} has no seed, though every run writes its own down")
    return replace(config, engines_before=_engines_before(directory))


class Rebuilt(NamedTuple):
    """A run built again from its settings, at its beginning."""

    trainer: Trainer
    callbacks: list[Callback]  # those that the settings name
    notes: list[str]


def rebuild(config: TrainConfig, directory: RunDirectory | None, *, own_process: bool) -> Rebuilt:
    """`directory`: where the trainer writes; None: nowhere."""
    _prepare_process(config, own_process)
    own = [load_callback(path) for path in config.run.callbacks]
    config, chosen = settle_workers(config)  # saved runs have a number here, unless the file was edited
    assert config.run.seed is not None
    trainer = Trainer(config, config.run.seed, directory, encoder=load_encoder(config.policy))
    trainer.own_process = own_process
    return Rebuilt(trainer, own, chosen)


def _resumed(
    directory: RunDirectory, config: TrainConfig, strict: bool, own_process: bool
) -> tuple[Session, list[str]]:
    trainer, own, chosen = rebuild(config, directory, own_process=own_process)
    try:
        envs = other_envs(trainer, None, ready_made=False)
        restored, notes = _restore(trainer, directory, strict)
        notes += chosen
        asked = config.origins["total_steps"] == "given"
        if asked and trainer.budget < trainer.step:
            raise UsageError(
                f"total_steps={trainer.budget}, but the run is already at step {trainer.step:,}; give it more"
            )
        if asked and trainer.target.found is not None:
            trainer.target.go_on()
            notes.append(f"the target return of {config.run.target_return:g} is reached; training continues without it")
        if asked and trainer.selection.exhausted:
            trainer.selection.go_on()
            notes.append(f"the patience of {config.run.patience} evaluations is exhausted; the count starts again")
        directory.cut_logs(restored.log_sizes)
        if restored.lost_envs:
            lost = ", ".join(map(str, restored.lost_envs))
            notes.append(f"the open episodes of envs {lost} could not be restored; they start afresh")
        notes += set_horizon(trainer, directory)
        notes += what_differs(trainer, directory)
    except BaseException:
        trainer.envs.close()
        raise
    flags, filmed = resume_flags(directory, config), can_be_filmed(trainer)
    session = Session(trainer, directory, *envs, own, own_process=own_process, resume_flags=flags, filmed=filmed)
    session.unwritten = restored.unwritten
    return session, notes


def what_differs(trainer: Trainer, directory: RunDirectory) -> list[str]:
    """Versions, engine or machine that are not those the run began with: reasons for other bits."""
    notes = different_versions(directory) + _different_engine(trainer, directory)
    kernels = uses_kernels(trainer.config.engine)
    return notes + different_machine(directory, _computed_with(trainer), kernels=kernels)


def _computed_with(trainer: Trainer) -> dict[str, object]:
    """Properties of this process and machine that the last bits of the result depend on."""
    return {
        "kernels": library.facts(),
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": trainer.threads.number,
    }


def _engines_before(directory: RunDirectory) -> tuple[str, ...]:
    """The engines that the run may have started with, by its manifest: only they give the same bytes."""
    manifest = read_json(directory.manifest)
    chosen = manifest.get("engine_chosen")
    if chosen is None:  # runs of 0.1.0 say native or torch; torch may also mean hybrid
        acted = manifest.get("acting", manifest.get("engine"))
        return {"native": ("native",), "torch": ("hybrid", "torch")}.get(str(acted), ())
    return (chosen,) if chosen in list(BUILT_IN) else ()  # never code that only the manifest names


def _different_engine(trainer: Trainer, directory: RunDirectory) -> list[str]:
    manifest = read_json(directory.manifest)
    before = manifest.get("engine", trainer.engine)
    known = "acting" in manifest  # earlier versions recorded only what acts
    if before == (trainer.engine if known else trainer.engines.acting):
        return []
    return [
        f"the run began with the {before} engine and continues with {trainer.engine} ({trainer.engines.reason}): "
        "the same algorithm, but not to the last bit"
    ]


def _restore(trainer: Trainer, directory: RunDirectory, strict: bool) -> tuple[Restored, list[str]]:
    """Restore the checkpoint or, if the run was killed before its first one, start from the beginning."""
    if not directory.checkpoints.is_dir():
        raise CheckpointError(f"{directory.checkpoints} is missing; every run begins with it")
    if has_checkpoints(directory.checkpoints):
        folder, passed_over = find_checkpoint(directory.checkpoints, strict=strict)
        restored = restore(trainer, folder)
        best = trainer.selection.best
        point_best(directory.checkpoints, best[0] if best else None)
        notes = [f"resuming {directory.path} at step {trainer.step:,}"]
        return restored, notes + [f"skipped: {reason}" for reason in passed_over]
    notes = [f"{directory.path} has no checkpoint yet: starting from the beginning"]
    if trainer.config.run.init_from:
        notes += start_from(trainer, Path(trainer.config.run.init_from))
    return Restored([], dict.fromkeys(directory.log_state()["sizes"], 0)), notes


def load_callback(path: str) -> Callback:
    made = load_object(path, "callbacks")
    callback = made() if isinstance(made, type) else made
    if not isinstance(callback, Callback):
        raise UsageError(f"callbacks={path!r} is not a surefoot.Callback; derive your class from it")
    return callback
