"""`surefoot.train`, `surefoot.load`, `surefoot.evaluate`: what Python users and the command line call."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from surefoot.envs.config import EnvConfig
from surefoot.envs.make import load_object, make_env
from surefoot.envs.seeds import derive_seed
from surefoot.errors import CheckpointError, UsageError
from surefoot.runs import RunDirectory, find_run
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.runs.manifest import build_manifest
from surefoot.settings import options
from surefoot.training.agent import Agent
from surefoot.training.callbacks import Callback
from surefoot.training.config import TrainConfig, read_toml, resolve, to_toml
from surefoot.training.evaluate import Evaluation, evaluate_agent
from surefoot.training.loggers import FileLog, TensorBoardLog
from surefoot.training.progress import make_progress
from surefoot.training.state import load_policy
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
    named = tuple(callback for callback in callbacks if isinstance(callback, str))
    resolved = resolve(name, algo, preset, config, settings | ({"callbacks": named} if named else {}))
    own = [callback for callback in callbacks if not isinstance(callback, str)]
    return train_config(resolved, env=env, run_dir=run_dir, callbacks=own, progress=progress)


def env_name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else getattr(env, "__name__", type(env).__name__)


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
    vector = env if isinstance(env, gym.vector.VectorEnv) else None
    factory = env if callable(env) and vector is None and not isinstance(env, str) else None
    own = [*callbacks, *(load_callback(path) for path in config.run.callbacks)]
    trainer = Trainer(config, seed, envs=vector, factory=factory)
    try:
        evaluation_env = (
            None if vector is not None and config.run.eval_env is None else evaluation_factory(config, factory)
        )
        directory = RunDirectory.create(run_dir, config.env.env, config.run.algo, seed)
        trainer.run = directory
        write_atomic(directory.config, to_toml(config) if config.run.seed is not None else _with_seed(config, seed))
        manifest = build_manifest(
            env=config.env.env,
            env_from_python=vector is not None or factory is not None,
            algo=config.run.algo,
            seed=seed,
            preset=config.preset,
            engine="torch",
        )
        write_json(directory.manifest, manifest)
        directory.set_status("running", step=0)
        display = make_progress(enabled=progress, to_stderr=to_stderr)
        trainer.callbacks = [*own, FileLog(directory), TensorBoardLog(directory), display]
    except BaseException:
        trainer.envs.close()
        raise
    directory.note(greeting(trainer, directory))
    if own_process:
        seed_globals(seed)
        print(greeting(trainer, directory), file=sys.stderr if to_stderr else sys.stdout, flush=True)
    _train(trainer, directory)
    evaluation = None
    if evaluation_env is not None and config.run.eval_episodes:
        with display.evaluating(config.run.eval_episodes):
            evaluation = evaluate_agent(
                trainer.agent,
                evaluation_env,
                episodes=config.run.eval_episodes,
                seed=seed,
                max_steps=config.run.eval_max_steps,
            )
        for callback in trainer.callbacks:
            callback.on_evaluation(trainer, evaluation)
    write_json(directory.result, summarize(trainer, directory, evaluation))
    directory.set_status(
        "done",
        step=trainer.step,
        eval_return=evaluation.mean_return if evaluation else None,
        why=trainer.stop_reason,
    )
    return Run(directory)


def _train(trainer: Trainer, directory: RunDirectory) -> None:
    try:
        trainer.train()
    except KeyboardInterrupt:
        directory.set_status("interrupted", step=trainer.step)
        if not trainer.step:
            raise KeyboardInterrupt("before the first update; nothing was learned") from None
        trainer.save()
        raise KeyboardInterrupt(
            f"at step {trainer.step:,}; the policy is saved. Look at it: surefoot eval {directory.path}"
        ) from None
    except BaseException as error:
        directory.set_status("failed", step=trainer.step, error=f"{type(error).__name__}: {error}")
        directory.note(f"failed at step {trainer.step}: {type(error).__name__}: {error}")
        raise


def seed_globals(seed: int) -> None:
    """For environments that draw from Python's, NumPy's or PyTorch's global generator instead of their own."""
    random.seed(derive_seed(seed, "python"))
    np.random.seed(derive_seed(seed, "numpy"))
    torch.manual_seed(derive_seed(seed, "torch"))


def greeting(trainer: Trainer, directory: RunDirectory) -> str:
    """What is about to run, in three lines."""
    config = trainer.config
    size = sum(p.numel() for p in trainer.policy.parameters())
    changed = ", ".join(
        f"{name}={config.flat()[name]}"
        for name, origin in config.origins.items()
        if origin == "given" and name != "env"
    )
    note = "" if trainer.envs.exact_seeds else "\nnote: a ready-made vector env has one seed for all its episodes"
    return (
        f"{config.run.algo} on {config.env.env}, seed {trainer.seed}, preset {config.preset or 'none'}"
        f"{f' ({changed})' if changed else ''}\n"
        f"engine torch on {trainer.device} ({trainer.device_reason}), {size:,} parameters, "
        f"{trainer.envs.num_envs} envs\nrun {directory.path}{note}"
    )


def _with_seed(config: TrainConfig, seed: int) -> str:
    """config.toml with the seed that was drawn, so that it repeats the run."""
    from dataclasses import replace

    return to_toml(replace(config, run=replace(config.run, seed=seed)))


def summarize(trainer: Trainer, directory: RunDirectory, evaluation: Evaluation | None) -> dict[str, Any]:
    short = None
    if evaluation is not None:
        short = {k: v for k, v in evaluation.as_dict().items() if k != "returns"}
    return {
        "run_dir": str(directory.path),
        "algo": trainer.config.run.algo,
        "env": trainer.config.env.env,
        "seed": trainer.seed,
        "preset": trainer.config.preset,
        "total_steps": trainer.step,
        "updates": trainer.update,
        "episodes": trainer.episodes,
        "seconds": trainer.seconds,
        "steps_per_second": trainer.steps_per_second,
        "time_split": trainer.timer.shares(),
        "engine": "torch",
        "train_return": trainer.recent_return,
        "stopped": trainer.stop_reason,
        "eval": short,
    }


def evaluation_factory(config: TrainConfig, factory: Any) -> Callable[[], gym.Env[Any, Any]]:
    """Makes the env to evaluate in: the training one, or `eval_env` with the same wrappers."""
    if config.run.eval_env is None:
        return lambda: make_env(config.env, factory)
    from dataclasses import replace

    other = replace(config.env, env=config.run.eval_env, env_kwargs=config.run.eval_env_kwargs)
    make_env(other).close()  # a wrong name is an error now, not after the training
    return lambda: make_env(other)


def load_callback(path: str) -> Callback:
    made = load_object(path, "callbacks")
    callback = made() if isinstance(made, type) else made
    if not isinstance(callback, Callback):
        raise UsageError(f"callbacks={path!r} is not a surefoot.Callback; derive your class from it")
    return callback


def load(run: Run | RunDirectory | str | Path) -> Agent:
    """The agent of a run (or of one checkpoint's directory). Executes nothing of the run and needs no env."""
    if isinstance(run, (Run, RunDirectory)):
        path = run.path
    else:
        path = Path(run)
        if (path / "checkpoint.json").exists():
            return Agent(load_policy(path))
        path = find_run(run).path
    folder = RunDirectory(path).latest_checkpoint()
    if folder is None:
        raise CheckpointError(f"the run {path} has no checkpoint yet")
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
