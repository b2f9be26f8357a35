"""Resolves names and values into the settings of one run, each with its origin. Imports no torch.

Precedence: defaults < preset < config file < flags (or keywords).
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from surefoot.algorithms import ALGORITHMS, get_algorithm
from surefoot.engine.config import check_minibatches, count_minibatches, nearest_divisor
from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.errors import CheckpointError, UsageError, did_you_mean
from surefoot.policies.config import PolicyConfig
from surefoot.runs import find_run
from surefoot.runs.checkpoints import MANIFEST, find_checkpoint, read_verified
from surefoot.runs.files import read_regular
from surefoot.schedules import Schedule
from surefoot.settings import Option, Seconds, Settings, coerce, options, setting
from surefoot.training.config.other_libraries import explain
from surefoot.training.config.presets import automatic_preset, load_preset
from surefoot.training.config.unused import check_inert

DEFAULT_ALGO = "ppo"
MINIBATCHES = ("num_minibatches", "value_minibatches")
MEMORY = "memory"  # the origin of values adjusted because of it


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """The run."""

    algo: str = setting(DEFAULT_ALGO, f"One of {', '.join(ALGORITHMS)}.", flag=False)
    total_steps: int = setting(1_000_000, "Environment steps to train for; never exceeded.", low=1)
    seed: int | None = setting(None, "Random seed; drawn and printed if not given.", low=0, high=2**31 - 1)
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Device to train on; auto: a GPU only if the networks are large enough to benefit."
    )
    engine: Literal["auto", "torch", "native"] = setting(
        "auto", "Engine for acting and learning; auto: compiled kernels if they support the policy, else PyTorch."
    )
    threads: int | Literal["auto"] = setting(
        "auto",
        "Threads of the learner; auto: measure and use the fastest number. PyTorch's rounding depends on it, so its "
        "runs record it in config.toml.",
        low=1,
        high=1024,
    )
    log_every: int | None = setting(None, "Steps between rows of metrics; none: 200 rows per run.", low=1)
    checkpoint_every: int | None = setting(
        None, "Steps between checkpoints, in addition to the final one; none: one per minute.", low=1
    )
    max_time: Seconds | None = setting(
        None, "Save and stop within this wall time (2h, 90m, 45s); `surefoot resume` continues.", above=0
    )
    init_from: str | None = setting(
        None, "Start from the policy (and normaliser) of this run or checkpoint.", metavar="RUN"
    )
    log_info: tuple[str, ...] = setting(
        (), "Numbers to log from the env's info at the end of episodes, by name (is_success).", metavar="NAME"
    )
    callbacks: tuple[str, ...] = setting(
        (), "Your own callbacks: file.py:Class or module:Class.", metavar="FILE.py:CLASS"
    )
    trackers: tuple[str, ...] = setting(
        (), "Also send metrics to these services; their failures do not affect the run.", metavar="{wandb,mlflow}"
    )
    eval_every: int | None = setting(
        None, "Steps between evaluations during training, which choose the best checkpoint; none: disabled.", low=1
    )
    selection_episodes: int = setting(
        20, "Episodes per evaluation during training, with other seeds than the final one.", low=1
    )
    eval_episodes: int = setting(100, "Episodes of the final greedy evaluation; 0: disabled.", low=0)
    target_return: float | None = setting(
        None, "Stop when a greedy evaluation over eval_episodes reaches this mean return; none: disabled."
    )
    eval_max_steps: int | None = setting(
        None, "Longest evaluation episode, in steps; none: the env's own limit, else 10_000.", low=1
    )
    eval_env: str | None = setting(None, "Evaluate in this env instead of the training one.", metavar="ENV")
    eval_env_kwargs: dict[str, Any] = setting({}, "Keyword arguments of eval_env, as JSON.")
    video_every: int | None = setting(None, "Steps between videos of one greedy episode; none: disabled.", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_env_kwargs and self.eval_env is None:
            raise UsageError("eval_env_kwargs has no effect without eval_env; set the env to evaluate in")
        if self.target_return is not None and not self.eval_episodes:
            raise UsageError("target_return is tested in an evaluation, but eval_episodes=0; set eval_episodes (100)")

    @property
    def log_interval(self) -> int:
        return self.log_every or max(1, self.total_steps // 200)


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a run, grouped by owner; `origins` records where each value came from."""

    run: RunConfig
    env: EnvConfig
    policy: PolicyConfig
    algorithm: Any
    origins: dict[str, str] = field(default_factory=dict)
    preset: str | None = None
    preset_env: str | None = None  # the env that the preset was tuned for
    sources: dict[str, Path] = field(default_factory=dict)  # the files among the origins

    @property
    def groups(self) -> tuple[Settings, ...]:
        return (self.run, self.env, self.policy, self.algorithm)

    def flat(self) -> dict[str, Any]:
        """All settings by name, as in `config.toml`."""
        values = {name: value for group in self.groups for name, value in group.as_dict().items()}
        return {name: str(value) if isinstance(value, Schedule) else value for name, value in values.items()}


def all_options(algo: str) -> dict[str, Option]:
    """Every setting of a run of this algorithm, by name."""
    groups = (RunConfig, EnvConfig, PolicyConfig, get_algorithm(algo).config_type)
    found = [option for group in groups for option in options(group)]
    names = {option.name: option for option in found}
    assert len(names) == len(found), f"two groups of {algo} declare the same setting"
    return names


def resolve(
    env: str | None = None,
    algo: str | None = None,
    preset: str | None = "auto",
    config_file: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """The settings of a run. `preset`: a name, "auto" (the tuned one for env and algorithm, if any), or "none"/None."""
    given = dict(overrides or {})
    if env is not None:
        given["env"] = env
    if algo is not None:
        given["algo"] = algo
    from_file = read_toml(Path(config_file)) if config_file is not None else {}
    named = preset if preset not in (None, "auto", "none") else None
    from_preset = load_preset(named) if named else {}

    def decide(key: str, default: Any) -> Any:
        return given.get(key, from_file.get(key, from_preset.get(key, default)))

    algo_name, env_name = str(decide("algo", DEFAULT_ALGO)), str(decide("env", ""))
    get_algorithm(algo_name)
    if preset == "auto":
        named = automatic_preset(env_name, algo_name)
        from_preset = load_preset(named) if named else {}
    _check_preset_algo(named, from_preset, algo_name)
    layers = [(f"preset {named}", from_preset), (f"file {config_file}", from_file), ("given", given)]
    sources = {} if config_file is None else {f"file {config_file}": Path(config_file).absolute()}
    source = given.get("init_from", from_file.get("init_from", "none"))
    if source not in (None, "none") and not all(option.name in from_file for option in options(PolicyConfig)):
        folder, settings = policy_settings(str(source))
        layers.insert(1, (f"init_from {source}", settings))
        sources[f"init_from {source}"] = folder.absolute().parent.parent / "config.toml"
    return replace(_build(algo_name, layers, named, from_preset.get("env")), sources=sources)


def policy_settings(source: str) -> tuple[Path, dict[str, Any]]:
    """The checkpoint of a run (or the checkpoint itself) and the settings its policy was built with."""
    folder, _ = locate_checkpoint(source)
    _, files = read_verified(folder)
    try:
        settings: dict[str, Any] = json.loads(files["policy.json"])["policy"]
        known = {option.name for option in options(PolicyConfig)}
        return folder, {n: value for n, value in settings.items() if n in known}  # ignore the rest: it is untrusted
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'policy.json'} does not describe a policy: {error!r}") from None


def locate_checkpoint(source: str | Path, which: str = "latest", *, strict: bool = False) -> tuple[Path, list[str]]:
    """A checkpoint that verifies, of a run by name or at a path, and the reasons why newer ones were skipped."""
    if os.path.exists(Path(source) / MANIFEST):  # False if no file can have this name
        return Path(source), []
    return find_checkpoint(find_run(source).checkpoints, which, strict=strict)


def _check_preset_algo(named: str | None, values: Mapping[str, Any], algo: str) -> None:
    """A preset is tuned for one algorithm; with another its values would be silently wrong."""
    if named and values.get("algo", algo) != algo:
        raise UsageError(
            f"preset {named} is for {values['algo']}, not {algo}; drop --algo, or use --preset none with --config"
        )


def _build(
    algo: str, layers: Sequence[tuple[str, Mapping[str, Any]]], preset: str | None, preset_env: str | None
) -> TrainConfig:
    known = all_options(algo)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(known, "default")
    for origin, layer in layers:
        for name, value in layer.items():
            if name not in known:
                raise UsageError(_unknown_setting(name, value, algo, origin, layers))
            values[name], origins[name] = value, origin
    values["algo"] = algo
    own = _whole_envs(known, values, origins)
    values |= own
    origins |= dict.fromkeys(own, MEMORY)

    def make(group: type[Any]) -> Any:
        return group(**{option.name: values[option.name] for option in options(group) if option.name in values})

    config = TrainConfig(
        run=make(RunConfig),
        env=make(EnvConfig),
        policy=make(PolicyConfig),
        algorithm=make(get_algorithm(algo).config_type),
        origins=origins,
        preset=preset,
        preset_env=preset_env,
    )
    check_inert(config, get_algorithm(algo)(config.algorithm))
    if backend_of(config.env.env).one_row_each:
        check_together(config)
    return config


def _whole_envs(known: Mapping[str, Option], values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, int]:
    """A memory needs minibatches of whole envs: replace their number by the nearest one that divides num_envs.

    A number that the user typed is kept, as is one from a file that also sets the memory; the check reports it later.
    """

    def value(name: str) -> Any:
        return coerce(name, values.get(name, known[name].default), known[name].type)

    if value("memory") == "none":
        return {}
    found, envs = {}, value("num_envs")
    for name in (name for name in MINIBATCHES if name in known):
        wanted = value(name)
        chosen = origins[name] == "default" or origins[name].startswith("preset") or origins["memory"] == "given"
        if wanted != "auto" and origins[name] != "given" and chosen and envs >= 1 and envs % wanted:
            found[name] = nearest_divisor(envs, wanted)
    return found


def algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting of this name."""
    return [algo for algo in ALGORITHMS if name in all_options(algo)]


def _unknown_setting(
    name: str, value: Any, algo: str, origin: str, layers: Sequence[tuple[str, Mapping[str, Any]]]
) -> str:
    known = all_options(algo)
    given = {key: item for _, layer in layers for key, item in layer.items() if key in known}
    settings = {key: option.default for key, option in known.items()}
    with suppress(UsageError):  # an invalid value is reported separately, later
        settings |= {key: coerce(key, item, known[key].type) for key, item in given.items()}
    elsewhere = explain(name, algo, known, algorithms_with, value, settings, as_flag=False)
    if elsewhere:
        return f"unknown setting '{name}' ({origin}); {elsewhere}"
    others = algorithms_with(name)
    if others:
        return f"'{name}' ({origin}) is not a setting of {algo}; it belongs to {', '.join(others)}"
    return f"unknown setting '{name}' ({origin}){did_you_mean(name, known)} (`surefoot explain {algo}` lists all)"


def check_together(config: TrainConfig, num_envs: int | None = None) -> None:
    """Checks across groups: minibatches divide the rollout, the budget covers at least one rollout."""
    algorithm = config.algorithm
    envs = num_envs or algorithm.num_envs
    size = envs * algorithm.rollout_length
    minibatch = getattr(algorithm, "normalize_advantage", "none") == "minibatch"
    for name, parts in minibatches(config, envs, algorithm.rollout_length).items():
        try:
            check_minibatches(size, parts, minibatch and name == "num_minibatches")
        except UsageError as error:
            raise UsageError(str(error).replace("num_minibatches", name, 1)) from None
        if config.policy.memory != "none" and envs % parts:
            raise UsageError(
                f"with memory={config.policy.memory} minibatches are made of whole envs, but num_envs={envs} is not "
                f"a multiple of {name}={parts}; change one of the two"
            )
    whole_episodes = get_algorithm(config.run.algo)(algorithm).episodes_per_env is not None
    if not whole_episodes and size > config.run.total_steps:
        raise UsageError(
            f"total_steps={config.run.total_steps} is less than one rollout of {size} "
            f"({size // algorithm.rollout_length} envs × {algorithm.rollout_length} steps); "
            "raise --total-steps, or lower --rollout-length or --num-envs"
        )


def minibatches(config: TrainConfig, num_envs: int, length: int) -> dict[str, int]:
    """Number of minibatches for rollouts of this size, by the name of the setting, with `auto` resolved."""
    names = [name for name in MINIBATCHES if hasattr(config.algorithm, name)]
    samples, memory = num_envs * length, config.policy.memory != "none"
    units = num_envs if memory else samples
    return {name: count_minibatches(getattr(config.algorithm, name), samples, units) for name in names}


def with_minibatches(config: TrainConfig, num_envs: int, length: int) -> TrainConfig:
    """The config with numbers instead of `auto`, so that `config.toml` repeats the run."""
    return replace(config, algorithm=replace(config.algorithm, **minibatches(config, num_envs, length)))


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(Path(path)).decode())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, a huge number, deep nesting
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def to_toml(config: TrainConfig) -> str:
    """The effective settings; `none` stands for None, which TOML lacks."""
    import tomli_w

    plain = {
        name: "none" if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in config.flat().items()
    }
    for name, value in plain.items():
        if isinstance(value, dict):  # as JSON text, which supports null, unlike TOML
            try:
                plain[name] = json.dumps(value)
            except TypeError as error:
                raise UsageError(f"{name} cannot be saved ({error}); pass a function that makes the env") from None
    written = tomli_w.dumps(plain)
    try:
        written.encode()
    except UnicodeEncodeError:
        odd = [name for name, value in plain.items() if not _is_text(value)]
        raise UsageError(
            f"{' and '.join(odd)}: a name that is not UTF-8 cannot be written into config.toml; rename the file"
        ) from None
    return written


def _is_text(value: Any) -> bool:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return False
    return True
