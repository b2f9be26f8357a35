"""`surefoot.train`, `surefoot.resume`, `surefoot.evaluate`: what Python users and the command line call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from surefoot.deploy.exporter import Wish
from surefoot.deploy.exporting import Exported, export_policy, exporters
from surefoot.envs.config import EnvConfig
from surefoot.envs.make import make_env
from surefoot.envs.seeds import derive_seed
from surefoot.errors import CheckpointError, UsageError, did_you_mean
from surefoot.runs import Run, RunDirectory, find_run
from surefoot.runs.checkpoints import find_checkpoint
from surefoot.runs.files import read_regular
from surefoot.settings import options
from surefoot.text import one_line
from surefoot.training.build.own_encoders import EncoderCode, handed_over
from surefoot.training.callbacks import Callback
from surefoot.training.config.lost_env import lost_env
from surefoot.training.config.resolve import Outline, read_outline, resolve
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import env_maker, evaluate_agent
from surefoot.training.evaluation.result import Evaluation
from surefoot.training.evaluation.video import Recording, record
from surefoot.training.life.launch import resume_directory, train_config
from surefoot.training.life.session import evaluation_factory
from surefoot.training.life.trust import Trust, agreed_algorithm, foreign_code, require_trust
from surefoot.training.loop.state import load_policy, untrained_policy

if TYPE_CHECKING:
    from surefoot.deploy.sb3.importing import Imported
    from surefoot.envs.make import Factory
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.life.launch import EnvLike
    from surefoot.types import GymEnv, GymVectorEnv


def train(
    env: EnvLike | None = None,
    algo: str | type | None = None,
    *,
    preset: str | None = "auto",
    config: str | Path | None = None,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback | str] = (),
    progress: bool = True,
    trust: bool = False,
    **settings: object,
) -> Run:
    """Train and return the run. `settings` are the command line's flags under the same names.

    `env` is an id, `module:Id`, `file.py:Factory`, an id of a backend (`envpool:ID`, `atari:ID`, `brax:NAME` …), a
    function that makes an env, or a ready VectorEnv (of arrays or of tensors). `algo` is a name, `file.py:Class`,
    `module:Class` or a class; so are `encoder` and `engine`. Callbacks are objects, or `file.py:Class` as on the
    command line. Code that only the `config` file names needs `trust=True`.
    """
    name = env if isinstance(env, str) or env is None else env_name(env)
    if isinstance(env, gym.vector.VectorEnv):
        settings = for_vector_env(env, settings)
    named = tuple(callback for callback in callbacks if isinstance(callback, str))
    encoder, settings = handed_over(settings)
    settings |= {"callbacks": named} if named else {}
    agreed = agreed_algorithm(config, trust) if config is not None and algo is None else None
    resolved = resolve(name, algo, preset, config, settings, agreed=agreed)
    own = [callback for callback in callbacks if not isinstance(callback, str)]
    result = train_config(
        resolved, env=env, run_dir=run_dir, callbacks=own, progress=progress, trust=trust, encoder=encoder
    )
    return Run(RunDirectory(Path(result["run_dir"])))


def env_name(env: object) -> str:
    """The name for an env that was made in Python."""
    if hasattr(env, "num_envs") and not isinstance(env, (gym.vector.VectorEnv, type)):
        raise UsageError(
            f"{type(env).__name__} steps several envs, but is not a gymnasium.vector.VectorEnv. For Isaac Lab and "
            "mjlab, wrap it: surefoot.envs.lab_envs.LabVectorEnv(env); for others see docs/simulators.md"
        )
    if isinstance(env, gym.Env):
        raise UsageError(
            "pass a function that makes the env (its class, or lambda: ...), not the env itself: "
            "a run needs several of them, and an env cannot be copied"
        )
    if not callable(env) and not isinstance(env, gym.vector.VectorEnv):
        raise UsageError(
            f"{type(env).__name__} is not an env; pass an id, a function that makes an env, "
            "or a gymnasium.vector.VectorEnv"
        )
    spec = getattr(env, "spec", None)
    if isinstance(spec, gym.envs.registration.EnvSpec):  # on the class of a wrapper it is a property
        return str(spec.id)
    return getattr(env, "__name__", type(env).__name__)


def for_vector_env(env: GymVectorEnv, settings: dict[str, object]) -> dict[str, object]:
    """A ready vector env cannot be changed: settings that would need to rebuild it are refused, not ignored."""
    for name in ("env_kwargs", "wrappers"):
        if settings.get(name):
            raise UsageError(f"{name} cannot be applied to a ready-made vector env; apply it when you make the env")
    if settings.get("num_envs", env.num_envs) != env.num_envs:
        raise UsageError(f"num_envs={settings['num_envs']}, but the vector env has {env.num_envs}; drop num_envs")
    return {**settings, "num_envs": env.num_envs}


def resume(
    run: Run | str | Path,
    *,
    total_steps: int | str | None = None,
    max_time: float | str | None = None,
    strict: bool = False,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Run:
    """Continue an interrupted run as if nothing had happened, or train a finished one for more steps.

    `total_steps`: a new step budget, at which schedules then end; the run keeps it. `strict`: a damaged checkpoint is
    an error, even if an older one could be used. `trust`: the run's own modules and files may be executed.
    """
    directory = _directory(run)
    resume_directory(
        directory,
        total_steps=total_steps,
        max_time=max_time,
        strict=strict,
        trust=trust,
        callbacks=callbacks,
        progress=progress,
    )
    return Run(directory)


def _directory(run: Run | RunDirectory | str | Path) -> RunDirectory:
    return RunDirectory(run.path) if isinstance(run, (Run, RunDirectory)) else find_run(run)


def evaluate(
    agent: Agent,
    env: str | Callable[..., GymEnv],
    *,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    **env_settings: Any,
) -> Evaluation:
    """Play whole episodes with fixed seeds. `env_settings`: env_kwargs, wrappers, max_episode_steps.

    `seed` chooses the episodes, like `surefoot eval --seed`. No run, whatever its seed, trains on these episodes,
    selects by them or reports them.
    """
    known = {option.name for option in options(EnvConfig)}
    unknown = set(env_settings) - known
    if unknown:
        raise UsageError(
            f"evaluate() does not take {', '.join(sorted(unknown))}; env settings are {', '.join(sorted(known))}"
        )
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is too small; it must be at least 1")
    if not isinstance(agent, Agent):
        raise UsageError(f"evaluate() plays with the agent of surefoot.load(run), not with a {type(agent).__name__}")
    if isinstance(env, gym.vector.VectorEnv):
        raise UsageError("evaluate() plays whole episodes on envs of its own; pass an id or a function that makes one")
    name = env if isinstance(env, str) else env_name(env)
    config = EnvConfig(env=name, **env_settings)
    factory = None if isinstance(env, str) else env
    return evaluate_agent(
        agent,
        env_maker(config, factory),
        episodes=episodes,
        seed=asked_episodes(seed),
        deterministic=deterministic,
        max_steps=max_steps,
    )


def evaluate_run(
    run: Run | RunDirectory | str | Path,
    *,
    checkpoint: str | int = "latest",
    episodes: int = 100,
    seed: int | None = None,
    deterministic: bool = True,
    max_steps: int | None = None,
    strict: bool = False,
    trust: Trust = False,
) -> tuple[Evaluation, Path, list[str]]:
    """(the evaluation in the run's env, the checkpoint that was used, which ones were skipped and why)."""
    directory = _directory(run)
    config = run_config(directory, trust)
    folder, passed_over = find_checkpoint(directory.checkpoints, str(checkpoint), strict=strict)
    evaluation = evaluate_agent(
        Agent(load_policy(folder, EncoderCode(trust=trust, agreed=config.policy.encoder))),
        evaluation_factory(config, None),
        episodes=episodes,
        seed=episode_seeds(config, seed),
        deterministic=deterministic,
        max_steps=max_steps or config.run.eval_max_steps,
    )
    return evaluation, folder, passed_over


def episode_seeds(config: Outline, asked: int | None) -> int:
    """The seed of the run's own final evaluation, or of other episodes if asked for."""
    if asked is not None:
        return asked_episodes(asked)
    if config.run.seed is None:
        raise CheckpointError("the run's config.toml has no seed, though every run writes its own down")
    return config.run.seed


def asked_episodes(seed: int) -> int:
    """The seed for episodes that the user asks for: never a run's own, even if the seeds are equal."""
    return derive_seed(seed, "asked")


def run_config(directory: RunDirectory, trust: Trust) -> Outline:
    """The settings of a run whose env can be made again; its algorithm is not needed."""
    config = read_outline(directory.config)
    there = f"; evaluate it there: surefoot.evaluate(surefoot.load('{directory.path}'), your_env)"
    if config.run.eval_env is None and (reason := lost_env(directory, there)) is not None:
        raise UsageError(reason)
    require_trust(config, trust, directory.path)
    return config


def video(
    run: Run | RunDirectory | str | Path,
    out: str | Path | None = None,
    *,
    env: str | Callable[..., GymEnv] | None = None,
    checkpoint: str | int = "latest",
    episodes: int = 1,
    untrained: bool = False,
    seed: int | None = None,
    deterministic: bool = True,
    max_steps: int | None = None,
    strict: bool = False,
    trust: Trust = False,
) -> Recording:
    """An mp4 of the run's policy, alone or beside the `untrained` one, by default in the run's own `videos/`.

    `env`: where it plays, if not in the env of the run.
    """
    directory = _directory(run)
    code = EncoderCode(trust=trust)
    if env is None:
        config = run_config(directory, trust)
        code = replace(code, agreed=config.policy.encoder)
        make: Callable[[], GymEnv] = evaluation_factory(config, None, render_mode="rgb_array")
    else:
        config = read_outline(directory.config)
        make = _maker(env, config, "rgb_array")
    folder, _ = find_checkpoint(directory.checkpoints, str(checkpoint), strict=strict)
    agents = {"trained": Agent(load_policy(folder, code))}
    if untrained:
        agents = {"untrained": Agent(untrained_policy(folder, config, code))} | agents
    if not out:
        directory.refuse_links()
    file = Path(out) if out else directory.videos / f"{folder.name}{'-beside-untrained' if untrained else ''}.mp4"
    found = record(
        agents,
        make,
        file,
        episodes=episodes,
        seed=episode_seeds(config, seed),
        deterministic=deterministic,
        max_steps=max_steps or config.run.eval_max_steps,
    )
    assert found is not None
    return replace(found, step=int(folder.name) if folder.name.isdigit() else None)


def export_run(
    run: Run | RunDirectory | str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    checkpoint: str | int = "latest",
    name: str = "surefoot_policy",
    seed: int | None = None,
    strict: bool = False,
    trust: Trust = False,
) -> Exported:
    """Write the run's policy as a file for other programs, after comparing both; by default to the run's `exports/`.

    `seed`: draw actions, starting from it; None: take the most likely ones.
    """
    known = exporters()
    if to not in known:
        raise UsageError(f"cannot export to {to!r}; known: {', '.join(known)}{did_you_mean(to, known)}")
    directory = _directory(run)
    folder, passed_over = find_checkpoint(directory.checkpoints, str(checkpoint), strict=strict)
    config = read_outline(directory.config)
    if not out:
        directory.refuse_links()
    target = Path(out) if out else directory.exports / f"{folder.name}-{to}"
    wish = Wish(name, seed, f"The policy of {one_line(directory.path.name)}, checkpoint {folder.name}.")
    manifest = read_regular(directory.manifest)
    make = partial(_recording_env, directory, config, trust)
    found = export_policy(folder, known[to](), target, wish, make=make, manifest=manifest)
    return replace(found, notes=(*(f"skipped: {reason}" for reason in passed_over), *found.notes))


def _recording_env(directory: RunDirectory, config: Outline, trust: Trust) -> MakeEnv:
    """Makes the env of a run, to record observations in. UsageError, with the reason, if it may not or cannot."""
    if config.run.eval_env is None and lost_env(directory) is not None:
        raise UsageError("the run does not name it")
    try:
        require_trust(config, trust, directory.path)
    except UsageError:
        code = ", ".join(foreign_code(config))
        raise UsageError(f"recorded ones need --trust, because the run names code to execute ({code})") from None
    return evaluation_factory(config, None)


def import_sb3(
    file: str | Path,
    *,
    normalizer: str | Path | None = None,
    env: str | None = None,
    run_dir: str | Path | None = None,
    **env_settings: object,
) -> Imported:
    """Make a run of a model that Stable-Baselines3 saved. Executes nothing in the file.

    `normalizer`: VecNormalize's statistics, an .npz file. `env`: the env it was trained in, with `env_settings`.
    Without it, the run acts and can be exported, but not evaluated or resumed.
    """
    from surefoot.deploy.sb3.importing import import_model

    statistics = None if normalizer is None else Path(normalizer)
    return import_model(Path(file), normalizer=statistics, env=env, env_settings=env_settings, run_dir=run_dir)


def _maker(env: str | Factory, config: Outline, render_mode: str) -> Callable[[], GymEnv]:
    factory = None if isinstance(env, str) else env
    other = replace(config.env, env=env if isinstance(env, str) else env_name(env))
    return lambda: make_env(other, factory, render_mode)
