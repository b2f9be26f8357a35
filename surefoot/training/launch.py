"""Starting a run: fresh from a config, or again from its directory. Everything is checked before the first env step."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from surefoot.envs.make import load_object
from surefoot.envs.seeds import derive_seed
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.checkpoints import find_checkpoint
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.runs.manifest import build_manifest
from surefoot.settings import coerce
from surefoot.training.callbacks import Callback
from surefoot.training.config import TrainConfig, resolve, to_toml
from surefoot.training.session import Session, evaluation_factory, greeting, say
from surefoot.training.state import restore
from surefoot.training.trainer import Trainer

EnvLike = str | Callable[..., "gym.Env[Any, Any]"] | gym.vector.VectorEnv[Any, Any, Any]


def train_config(
    config: TrainConfig,
    *,
    env: EnvLike | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
) -> RunDirectory:
    """Train a resolved config; everything is checked and the directory made before the first env step.

    `own_process`: nobody else lives here, so greet, and seed the global generators that a careless env may use.
    """
    seed = secrets.randbelow(2**31) if config.run.seed is None else config.run.seed
    config = replace(config, run=replace(config.run, seed=seed))  # written down, so that config.toml repeats the run
    vector = env if isinstance(env, gym.vector.VectorEnv) else None
    factory = env if callable(env) and vector is None and not isinstance(env, str) else None
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    trainer = Trainer(config, seed, envs=vector, factory=factory)
    try:
        spaces = (trainer.envs.observation_space, trainer.envs.action_space)
        no_other = vector is not None and config.run.eval_env is None
        evaluation_env = None if no_other else evaluation_factory(config, factory, spaces)
        written = to_toml(config)
        directory = RunDirectory.create(run_dir, config.env.env, config.run.algo, seed)
        directory.lock()
        trainer.run = directory
        write_atomic(directory.config, written)
        manifest = build_manifest(
            env=config.env.env,
            env_from_python=vector is not None or factory is not None,
            algo=config.run.algo,
            seed=seed,
            preset=config.preset,
            engine="torch",
        )
        write_json(directory.manifest, manifest)
    except BaseException:
        trainer.envs.close()
        raise
    resumable = vector is None and factory is None
    return _run(Session(trainer, directory, evaluation_env, own, progress, to_stderr, resumable), own_process)


def _run(session: Session, own_process: bool) -> RunDirectory:
    if own_process:
        seed_globals(session.trainer.seed)
        say(greeting(session.trainer, session.directory), session.to_stderr)
    try:
        session.run()
    finally:
        session.directory.unlock()
    return session.directory


def resume_directory(
    directory: RunDirectory,
    *,
    total_steps: int | str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
) -> RunDirectory:
    """Go on from the latest checkpoint that verifies."""
    directory.lock()
    try:
        session = _resumed(directory, total_steps, callbacks, progress, to_stderr)
    except BaseException:
        directory.unlock()
        raise
    return _run(session, own_process)


def _resumed(
    directory: RunDirectory, total_steps: Any, callbacks: Sequence[Callback], progress: bool, to_stderr: bool
) -> Session:
    if read_json(directory.manifest).get("env_from_python"):
        raise UsageError(
            f"{directory.path} was trained on an env that was made in Python, which is not written down; "
            "only runs on an env by id or by file can be resumed"
        )
    config = resolve(preset=None, config_file=directory.config)
    budget = coerce("total_steps", total_steps, int | None)
    folder, passed_over = find_checkpoint(directory.checkpoints)
    assert config.run.seed is not None
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    trainer = Trainer(config, config.run.seed, directory, budget=budget)
    try:
        restored = restore(trainer, folder)
        if budget is not None and budget < trainer.step:
            raise UsageError(f"total_steps={budget}, but the run is already at step {trainer.step:,}; give it more")
        directory.cut_logs(restored.log_sizes)
        notes = [f"resuming {directory.path} at step {trainer.step:,}"]
        notes += [f"passed over: {reason}" for reason in passed_over]
        if restored.lost_envs:
            lost = ", ".join(map(str, restored.lost_envs))
            notes.append(f"the open episodes of envs {lost} could not be restored; they start afresh")
        if budget is not None and budget > config.run.total_steps:
            notes.append(f"schedules keep their horizon of {config.run.total_steps:,} steps")
        for note in notes:
            directory.note(note)
            if progress:
                say(note, to_stderr)
        evaluation_env = evaluation_factory(config, None)
    except BaseException:
        trainer.envs.close()
        raise
    return Session(trainer, directory, evaluation_env, own, progress, to_stderr)


def seed_globals(seed: int) -> None:
    """For environments that draw from Python's, NumPy's or PyTorch's global generator instead of their own."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy"))
    torch.manual_seed(derive_seed(seed, "torch"))


def load_callback(path: str) -> Callback:
    made = load_object(path, "callbacks")
    callback = made() if isinstance(made, type) else made
    if not isinstance(callback, Callback):
        raise UsageError(f"callbacks={path!r} is not a surefoot.Callback; derive your class from it")
    return callback
