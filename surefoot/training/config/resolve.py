"""Resolves names and values into the settings of one run, each with its origin. Imports no torch.

Precedence: defaults < preset < config file < flags (or keywords).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.algorithms import (
    ALGORITHMS,
    Algorithm,
    algorithm_name,
    get_algorithm,
    preset_algorithm,
)
from surefoot.algorithms.own import check_algorithm
from surefoot.engine.names import engine_name
from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.errors import CheckpointError, CodeError, SurefootError, UsageError, did_you_mean, user_errors
from surefoot.policies.config import PolicyConfig
from surefoot.runs.checkpoints import read_verified
from surefoot.runs.files import read_toml
from surefoot.runs.locate import locate_checkpoint
from surefoot.schedules import Schedule, as_schedule
from surefoot.settings import Option, Settings, SettingsT, coerce, options, title_of
from surefoot.training.config.other_libraries import explain
from surefoot.training.config.presets import automatic_preset, load_preset, tuned_algorithms
from surefoot.training.config.run_config import DEFAULT_ALGO, RunConfig
from surefoot.training.config.together import check_together, whole_envs
from surefoot.training.config.unused import check_inert
from surefoot.user_code import names_code, short_name

if TYPE_CHECKING:
    from surefoot.engine.config import CollectConfig
    from surefoot.engine.contract import Engine

MEMORY = "memory"  # the origin of numbers that follow from it


SHARED = (RunConfig, EnvConfig, PolicyConfig)  # groups of settings that every algorithm has


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The settings of a run without its algorithm's: that may be code that must not be executed (yet).

    `origins` says where each value came from.
    """

    run: RunConfig
    env: EnvConfig
    policy: PolicyConfig
    origins: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)  # the files among the origins

    @property
    def groups(self) -> tuple[Settings, ...]:
        return (self.run, self.env, self.policy)

    @property
    def engine(self) -> str | type[Engine]:
        """The engine setting: a name, or a class passed in Python."""
        return self.run.engine

    def flat(self) -> dict[str, object]:
        """All settings by name, as in `config.toml`."""
        values = {name: value for group in self.groups for name, value in group.as_dict().items()}
        return {name: str(value) if isinstance(value, Schedule) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Outline):
    """All settings of a run, grouped by the component that owns them."""

    algorithm: CollectConfig
    algorithm_class: type[Algorithm]
    engine_class: type[Engine] | None = None  # passed in Python
    engines_before: tuple[str, ...] = ()  # engines a resumed run started with; `auto` tries these first
    preset: str | None = None
    preset_env: str | None = None  # the env that the preset was made for
    preset_algo: str | None = None  # the algorithm that the preset was made for
    preset_left_out: tuple[str, ...] = ()  # settings of the preset that the algorithm does not have

    @property
    def groups(self) -> tuple[Settings, ...]:
        return (self.run, self.env, self.policy, self.algorithm)

    @property
    def engine(self) -> str | type[Engine]:
        return self.engine_class or self.run.engine

    @property
    def algo_name(self) -> str:
        """The algorithm's name, without the path to it."""
        return short_name(self.run.algo)

    def new_algorithm(self) -> Algorithm:
        """The algorithm with these settings. Executes the user's code if the algorithm is their own."""
        try:
            algorithm: Algorithm = self.algorithm_class(self.algorithm)
        except SurefootError:
            raise
        except user_errors() as error:
            raise CodeError(f"{self.run.algo} raised {type(error).__name__} when it was made: {error}") from error
        return algorithm


def all_options(algo: str | type[Algorithm]) -> dict[str, Option]:
    """Every setting of a run of this algorithm, by name."""
    algorithm = get_algorithm(algo) if isinstance(algo, str) else algo
    found: dict[str, Option] = {}
    for group in (*SHARED, algorithm.config_type):
        for option in options(group):
            if option.name in found:
                whose = title_of(found[option.name].owner).lower()
                raise UsageError(
                    f"the setting {option.name} of {algorithm.__name__} is also one of another part of the run "
                    f"({whose}); rename it"
                )
            found[option.name] = option
    return found


def resolve(
    env: str | None = None,
    algo: str | type[Algorithm] | None = None,
    preset: str | None = "auto",
    config_file: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    agreed: str | None = None,
) -> TrainConfig:
    """The settings of a run. `preset`: a name, "auto" (the tuned one of env and algorithm, if any), or "none"/None.

    `algo` and the override `engine` may be classes. `agreed`: an algorithm named only in the file whose code the user
    has agreed to run; it then counts as typed. Otherwise such code is not executed.
    """
    given = dict(overrides or {}) | {k: v for k, v in (("env", env), ("algo", algo)) if v is not None}
    classes = _by_name(given)
    from_file = read_toml(Path(config_file)) if config_file is not None else {}
    if agreed is not None and names_code(agreed) and from_file.get("algo") == agreed:
        given.setdefault("algo", agreed)
    named = preset if preset not in (None, "auto", "none") else None
    from_preset = load_preset(named) if named else {}

    def decide(key: str, default: object) -> object:
        return given.get(key, from_file.get(key, from_preset.get(key, default)))

    algo_name, env_name = str(decide("algo", DEFAULT_ALGO)), str(decide("env", ""))
    if names_code(algo_name) and "algo" not in given:
        raise UsageError(f"{config_file} names code that would be executed: algo = {algo_name}; use --trust")
    algorithm = classes.get("algo") or get_algorithm(algo_name)
    tuned_for = preset_algorithm(algo_name, algorithm)
    if preset == "auto":
        named = automatic_preset(env_name, tuned_for)
        from_preset = load_preset(named) if named else {}
    _check_preset_algo(named, from_preset, (algo_name, tuned_for))
    from_preset, unknown = _fitting(from_preset, algorithm, exact=tuned_for == algo_name)
    layers = [(f"preset {named}", from_preset), (f"file {config_file}", from_file), ("given", given)]
    sources = {} if config_file is None else {f"file {config_file}": Path(config_file).absolute()}
    source = given.get("init_from", from_file.get("init_from", "none"))
    if source not in (None, "none") and not all(option.name in from_file for option in options(PolicyConfig)):
        folder, settings = policy_settings(str(source))
        layers.insert(1, (f"init_from {source}", settings))
        sources[f"init_from {source}"] = folder.absolute().parent.parent / "config.toml"
    return replace(
        _build(algo_name, algorithm, layers),
        sources=sources,
        engine_class=classes.get("engine"),
        preset=named,
        preset_env=None if (tuned := from_preset.get("env")) is None else str(tuned),
        preset_algo=tuned_for if named else None,
        preset_left_out=unknown,
    )


def read_outline(config_file: Path) -> Outline:
    """A run's `config.toml` without the settings of its algorithm. Executes nothing."""
    found, origin = read_toml(config_file), f"file {config_file}"
    known = {option.name for group in SHARED for option in options(group)}
    return Outline(
        run=_make(RunConfig, found),
        env=_make(EnvConfig, found),
        policy=_make(PolicyConfig, found),
        origins={name: origin if name in found else "default" for name in known},
        sources={origin: config_file.absolute()},
    )


def preset_notes(config: TrainConfig) -> list[str]:
    """Messages about a preset that was made for another env or algorithm, or that fits less well than another."""
    notes = []
    if (config.preset or "").startswith("family/") and config.origins.get("algo") == f"preset {config.preset}":
        tuned = tuned_algorithms(config.env.env)  # while the user has named none
        notes += [f"settings tuned for {config.env.env} come with --algo {' or '.join(tuned)}"] if tuned else []
    if config.preset_env not in (None, config.env.env):
        notes.append(f"the preset {config.preset} was made for {config.preset_env}")
    if config.preset_algo not in (None, config.run.algo):
        left = f", which has no {', '.join(config.preset_left_out)}" if config.preset_left_out else ""
        notes.append(
            f"the preset {config.preset} was made for {config.preset_algo} and is used for {config.algo_name}{left}"
        )
    return notes


def _by_name(given: dict[str, object]) -> dict[str, type]:
    """Take out the classes among the values; `given` has their names afterwards."""
    classes: dict[str, type] = {}
    for key, name_of in (("algo", algorithm_name), ("engine", engine_name)):
        value = given.get(key)
        if isinstance(value, type):
            given[key], classes[key] = name_of(value), value
        elif value is not None and not isinstance(value, str):
            raise UsageError(f"{key}={value!r} is of type {type(value).__name__}; give a name or the class itself")
    if "algo" in classes:
        check_algorithm(classes["algo"], str(given["algo"]))
    return classes


def _fitting(
    preset: Mapping[str, object], algorithm: type[Algorithm], *, exact: bool
) -> tuple[dict[str, object], tuple[str, ...]]:
    """(the preset's settings that the algorithm has, names of the others). `exact`: made for this algorithm."""
    if exact:
        return dict(preset), ()
    known = all_options(algorithm)
    unknown = tuple(name for name in preset if name not in known)
    return {name: value for name, value in preset.items() if name not in (*unknown, "algo")}, unknown


def policy_settings(source: str) -> tuple[Path, dict[str, object]]:
    """The checkpoint of a run (or the checkpoint itself) and the settings its policy was built with."""
    folder, _ = locate_checkpoint(source)
    _, files = read_verified(folder)
    try:
        settings: dict[str, object] = json.loads(files["policy.json"])["policy"]
        known = {option.name for option in options(PolicyConfig)}
        return folder, {n: value for n, value in settings.items() if n in known}  # ignore the rest: it is untrusted
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'policy.json'} does not describe a policy: {error!r}") from None


def _check_preset_algo(named: str | None, values: Mapping[str, object], algos: tuple[str, str]) -> None:
    """A preset's numbers are tuned for one algorithm; with another they would be silently wrong."""
    if named and values.get("algo", algos[0]) not in algos:
        raise UsageError(
            f"preset {named} is for {values['algo']}, not {algos[0]}; drop --algo, or use --preset none with --config"
        )


def _make(group: type[SettingsT], values: Mapping[str, object]) -> SettingsT:
    return group(**{option.name: values[option.name] for option in options(group) if option.name in values})


def _build(algo: str, algorithm: type[Algorithm], layers: Sequence[tuple[str, Mapping[str, object]]]) -> TrainConfig:
    known = all_options(algorithm)
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    for origin, layer in layers:
        for name, value in layer.items():
            if name not in known:
                raise UsageError(_unknown_setting(name, value, algo, known, origin, layers))
            values[name], origins[name] = value, origin
            short = f"{name}_schedule"
            if short in known and short not in layer and as_schedule(name, value) is not None:
                values.pop(short, None)  # a schedule replaces one from an earlier layer
                origins[short] = "default"
    values["algo"] = algo
    own = whole_envs(known, values, origins)
    values |= own
    origins |= dict.fromkeys(own, MEMORY)

    config = TrainConfig(
        run=_make(RunConfig, values),
        env=_make(EnvConfig, values),
        policy=_make(PolicyConfig, values),
        algorithm=_make(algorithm.config_type, values),
        algorithm_class=algorithm,
        origins=origins,
    )
    if config.env.normalize_rewards and "gamma" not in known:
        raise UsageError(f"normalize_rewards needs a discount, but {config.algo_name} has no setting gamma; drop it")
    check_inert(config, config.new_algorithm())
    if backend_of(config.env.env).one_row_each:
        check_together(config)
    return config


def algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting of this name."""
    return [algo for algo in ALGORITHMS if name in all_options(algo)]


def _unknown_setting(
    name: str,
    value: object,
    algo: str,
    known: Mapping[str, Option],
    origin: str,
    layers: Sequence[tuple[str, Mapping[str, object]]],
) -> str:
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
