"""Users' own algorithms: `file.py:Class`, `module:Class`, a class, or one from an installed package."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import Base
from surefoot.engine.config import CollectConfig, GradientConfig
from surefoot.errors import UsageError
from surefoot.settings import Settings, options
from surefoot.user_code import load_object, refuse_from_python

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm

GROUP = "surefoot.algorithms"  # entry points of installed packages
NEEDED = ("config_type", "uses_critic", "train_actor", "episodes_per_env", "current_loss", "update")
TOGETHER = {"num_minibatches": "num_epochs", "value_minibatches": "value_epochs"}
EXAMPLE = "docs/algorithms.md shows a whole one"


def load_algorithm(name: str) -> type[Algorithm]:
    """The class that `file.py:Class` or `module:Class` names. Executes the user's code."""
    refuse_from_python(name, "algorithm")
    return check_algorithm(load_object(name, "algo"), name)


def check_algorithm(found: object, name: str) -> type[Algorithm]:
    """Check that the class can be an algorithm; the error says what is missing, before anything is built."""
    if not isinstance(found, type):
        raise UsageError(f"algo={name} is a {type(found).__name__}; give the class itself")
    abstract = sorted(
        name for name, member in inspect.getmembers(found) if getattr(member, "__isabstractmethod__", False)
    )
    if abstract:
        raise UsageError(f"algo={name} is not complete; it lacks {', '.join(abstract)}")
    missing = [attribute for attribute in NEEDED if not hasattr(found, attribute)]
    if missing:
        base = "" if issubclass(found, Base) else "derive it from surefoot.algorithms.parts.Base; "
        raise UsageError(f"algo={name} has no {', '.join(missing)}; {base}{EXAMPLE}")
    algorithm: type[Algorithm] = found
    _check_settings(algorithm.config_type, name)
    return algorithm


def _check_settings(config: object, name: str) -> None:
    parts = (CollectConfig, GradientConfig)
    if not isinstance(config, type) or not all(issubclass(config, part) for part in parts):
        raise UsageError(
            f"the config_type of algo={name} must be a class of settings that derives from CollectConfig and "
            f"GradientConfig (surefoot.engine.config); {EXAMPLE}"
        )
    for cls in config.__mro__:
        if issubclass(cls, Settings) and inspect.get_annotations(cls) and "__dataclass_fields__" not in vars(cls):
            raise UsageError(f"algo={name}: write @dataclass(frozen=True, kw_only=True) above class {cls.__name__}")
    try:
        found = {option.name: option.default for option in options(config)}
    except (NameError, TypeError) as error:
        raise UsageError(
            f"the types of the settings of algo={name} cannot be read: {error}; import them at run time as well"
        ) from error
    for setting, default in found.items():
        if default is MISSING:
            raise UsageError(f"the setting {setting} of algo={name} has no default; give it one")
    for setting, other in TOGETHER.items():
        if setting in found and other not in found:
            raise UsageError(f"algo={name} has the setting {setting} without {other}; add it")
