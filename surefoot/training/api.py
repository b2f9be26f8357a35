"""`surefoot.train`, `surefoot.load`, `surefoot.evaluate`: what Python users and the command line call."""

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

from surefoot.envs.config import EnvConfig
from surefoot.envs.make import load_object, make_env
from surefoot.envs.seeds import derive_seed
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory, find_run
from surefoot.runs.checkpoints import find_checkpoint
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.runs.manifest import build_manifest
from surefoot.settings import coerce, options
from surefoot.training.agent import Agent
from surefoot.training.callbacks import Callback
from surefoot.training.config import TrainConfig, read_toml, resolve, to_toml
from surefoot.training.evaluate import Evaluation, evaluate_agent
from surefoot.training.session import Session, evaluation_factory, greeting, say
from surefoot.training.state import load_policy, restore
from surefoot.training.trainer import Trainer

EnvLike = str | Callable[..., "gym.Env[Any, Any]"] | gym.vector.VectorEnv[Any, Any, Any]


class Run:
    """A run on disk: `run.path`, `run.metrics`, `run.result`, `run.config`."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory, self.path = directory, directory.path

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`."""
        return self.directory.read_metrics()

    @property
    def result(self) -> dict[str, Any]:
        """The summary that `--json` prints: steps, seconds, the final evaluation."""
        result: dict[str, Any] = read_json(self.directory.result)
        return result

    @property
    def config(self) -> dict[str, Any]:
        """The effective settings."""
        return read_toml(self.directory.config)


def train(
    env: EnvLike | None = None,
    algo: str | None = None,
    *,
    preset: str | None = "auto",
    config: str | Path | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train and return the run. `settings` are the command line's flags under the same names.

    `env` is an id, `module:Id`, `file.py:Factory`, a function that makes an env, or a ready VectorEnv. Callbacks are
    objects, or `file.py:Class` as on the command line.
    """
    name = env if isinstance(env, str) or env is None else env_name(env)
    if isinstance(env, gym.vector.VectorEnv):
        settings = for_vector_env(env, settings)
    named = tuple(callback for callback in callbacks if isinstance(callback, str))
    resolved = resolve(name, algo, preset, config, settings | ({"callbacks": named} if named else {}))
    own = [callback for callback in callbacks if not isinstance(callback, str)]
    return train_config(resolved, env=env, run_dir=run_dir, callbacks=own, progress=progress)


def env_name(env: Any) -> str:
    """What to call an env that was made in Python."""
    if isinstance(env, gym.Env):
        raise UsageError(
            "pass a function that makes the env (its class, or lambda: ...), not the env itself: "
            "a run needs several of them, and an env cannot be copied"
        )
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else getattr(env, "__name__", type(env).__name__)


def for_vector_env(env: gym.vector.VectorEnv[Any, Any, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A ready vector env is as it is: settings that would have to build it anew are refused, not ignored."""
    for name in ("env_kwargs", "wrappers"):
        if settings.get(name):
            raise UsageError(f"{name} cannot be applied to a ready-made vector env; apply it when you make the env")
    if settings.get("num_envs", env.num_envs) != env.num_envs:
        raise UsageError(f"num_envs={settings['num_envs']}, but the vector env has {env.num_envs}; drop num_envs")
    return {**settings, "num_envs": env.num_envs}


def train_config(
    config: TrainConfig,
    *,
    env: EnvLike | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    to_stderr: bool = False,
    own_process: bool = False,
) -> Run:
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
    return _run(Session(trainer, directory, evaluation_env, own, progress, to_stderr), own_process)


def _run(session: Session, own_process: bool) -> Run:
    if own_process:
        seed_globals(session.trainer.seed)
        say(greeting(session.trainer, session.directory), session.to_stderr)
    try:
        session.run()
    finally:
        session.directory.unlock()
    return Run(session.directory)


def resume(
    run: Run | str | Path,
    *,
    total_steps: int | str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **how: Any,
) -> Run:
    """Go on with an interrupted run as if nothing had happened, or with a finished one for more steps.

    With a larger `total_steps` the schedules keep the horizon that the run began with.
    """
    directory = RunDirectory(run.path) if isinstance(run, Run) else find_run(run)
    directory.lock()
    try:
        session = _resumed(directory, total_steps, callbacks, progress, how.pop("to_stderr", False))
    except BaseException:
        directory.unlock()
        raise
    return _run(session, how.pop("own_process", False))


def _resumed(
    directory: RunDirectory, total_steps: Any, callbacks: Sequence[Callback], progress: bool, to_stderr: bool
) -> Session:
    if read_json(directory.manifest).get("env_from_python"):
        raise UsageError(
            f"{directory.path} was trained on an env that was made in Python; only runs by id can be resumed"
        )
    config = resolve(preset=None, config_file=directory.config)
    budget = coerce("total_steps", total_steps, int | None)
    folder, passed_over = find_checkpoint(directory.checkpoints)
    assert config.run.seed is not None
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    trainer = Trainer(config, config.run.seed, directory, budget=budget)
    try:
        restored = restore(trainer, folder)
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
            say(note, to_stderr) if progress else None
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


def load(run: Run | RunDirectory | str | Path) -> Agent:
    """The agent of a run (or of one checkpoint's directory). Executes nothing of the run and needs no env."""
    if isinstance(run, (str, Path)) and (Path(run) / "MANIFEST.json").exists():
        return Agent(load_policy(Path(run)))
    directory = RunDirectory(run.path) if isinstance(run, (Run, RunDirectory)) else find_run(run)
    folder, _ = find_checkpoint(directory.checkpoints)
    return Agent(load_policy(folder))


def evaluate(
    agent: Agent,
    env: str | Callable[..., gym.Env[Any, Any]],
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    **env_settings: Any,
) -> Evaluation:
    """Play whole episodes with fixed seeds. `env_settings`: env_kwargs, wrappers, max_episode_steps."""
    known = {option.name for option in options(EnvConfig)}
    unknown = set(env_settings) - known
    if unknown:
        raise UsageError(
            f"evaluate() does not take {', '.join(sorted(unknown))}; env settings are {', '.join(sorted(known))}"
        )
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is too small; it must be at least 1")
    if isinstance(env, gym.vector.VectorEnv):
        raise UsageError("evaluate() plays whole episodes on envs of its own; pass an id or a function that makes one")
    name = env if isinstance(env, str) else env_name(env)
    config = EnvConfig(env=name, **env_settings)
    factory = None if isinstance(env, str) else env
    return evaluate_agent(
        agent,
        lambda: make_env(config, factory),
        episodes=episodes,
        seed=seed,
        deterministic=deterministic,
        max_steps=max_steps,
    )


def evaluate_run(
    run: RunDirectory, *, episodes: int, seed: int | None, deterministic: bool, max_steps: int | None
) -> Evaluation:
    """Evaluate a run's policy in the env it was trained (or is to be evaluated) in."""
    agent = load(run)
    config = resolve(preset=None, config_file=run.config)
    if config.run.eval_env is None and read_json(run.manifest).get("env_from_python"):
        raise UsageError(
            f"{run.path} was trained on an env that was made in Python; evaluate it there: "
            f"surefoot.evaluate(surefoot.load('{run.path}'), your_env)"
        )
    assert config.run.seed is not None  # drawn seeds are written down
    return evaluate_agent(
        agent,
        evaluation_factory(config, None),
        episodes=episodes,
        seed=config.run.seed if seed is None else derive_seed(seed, "asked"),
        deterministic=deterministic,
        max_steps=max_steps or config.run.eval_max_steps,
    )
