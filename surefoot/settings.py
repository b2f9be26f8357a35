"""One way to declare a setting: a frozen dataclass field with its default, its help and its bounds.

Command-line flags, TOML files, `surefoot.train(...)` keywords, `surefoot explain` and the docs all read these fields,
so a setting is written once, beside the code that uses it.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import operator
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from numbers import Real
from typing import (
    Any,
    ClassVar,
    Literal,
    NewType,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from surefoot.errors import UsageError, did_you_mean
from surefoot.ranges import Range
from surefoot.schedules import Schedule, as_schedule

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")
TOO_LARGE = 10**300  # beyond what a float can be
LARGEST = 2**63 - 1  # beyond it, no array or counter can hold a whole number
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}
Class: TypeAlias = type  # an alias, because `type` names an attribute of settings
Seconds = NewType("Seconds", float)  # a duration, written as 2h, 90m, 1h30m or 45s
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def setting(
    default: T,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    flag: bool = True,
    metavar: str | None = None,
    search: Range | None = None,
) -> T:
    """A dataclass field that knows its help and its range: `low <= value <= high`, `above < value`.

    `flag=False` keeps it off the command line (for settings given by a positional argument). `metavar` says what its
    value is (RUN, FILE.py:CLASS) if the type does not; shell completion uses it. `search`: the values that
    `surefoot tune` tries; none: it leaves the setting alone.
    """
    metadata = {
        "help": help, "low": low, "high": high, "above": above, "flag": flag, "metavar": metavar, "search": search
    }  # fmt: skip
    if isinstance(default, dict):
        values = dict(default)  # even a frozen config must not share a mutable default
        return typing.cast(T, dataclasses.field(default_factory=lambda: dict(values), metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every config: values are coerced to their declared type and checked when the object is made."""

    may_change: ClassVar[bool] = False  # numbers may be schedules; code that uses them calls `at`

    def __post_init__(self) -> None:
        for field in options(type(self)):
            value = coerce(field.name, getattr(self, field.name), field.type)
            object.__setattr__(self, field.name, value)
            field.check(value)
            if isinstance(value, Schedule) and not self.may_change:
                raise UsageError(f"{field.name}={value} changes over the run, but this setting cannot; give one number")
        self._check_schedules()

    def at(self: SettingsT, remaining: float) -> SettingsT:
        """The settings when this fraction of the run is still ahead: every schedule becomes a plain number.

        `x_schedule = "linear"` is short for `x` falling to zero.
        """
        if not self.changing:
            return self
        values = vars(self)
        now = {
            name: values[name].at(remaining) if isinstance(values[name], Schedule) else values[name] * remaining
            for name in self.changing
        }
        made = object.__new__(type(self))
        vars(made).update(values | now)  # already checked; `replace` would check again in every update
        return made

    @cached_property
    def changing(self) -> tuple[str, ...]:
        """The settings that have a schedule; cached, because every update asks several times."""
        values = vars(self)
        return tuple(
            name
            for name, value in values.items()
            if isinstance(value, Schedule) or values.get(f"{name}_schedule") == "linear"
        )

    def _check_schedules(self) -> None:
        """Refuse two schedules for one setting."""
        for name, value in vars(self).items():
            if isinstance(value, Schedule) and vars(self).get(f"{name}_schedule", "constant") != "constant":
                raise UsageError(f"{name}={value} is a schedule already; leave {name}_schedule=constant")

    def as_dict(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


class Declared(TypedDict, total=False):
    """The arguments of `setting`."""

    help: Required[str]
    low: float | None
    high: float | None
    above: float | None
    flag: bool
    metavar: str | None
    search: Range | None


@dataclass(frozen=True)
class Option:
    """One setting as the command line and the docs see it."""

    name: str
    type: object
    default: object
    help: str
    owner: Class
    low: float | None = None
    high: float | None = None
    above: float | None = None
    flag: bool = True
    metavar: str | None = None
    search: Range | None = None

    @property
    def optional(self) -> bool:
        return unwrap_optional(self.type)[1]

    def check(self, value: object) -> None:
        numbers = value if isinstance(value, tuple) else (value,)
        if isinstance(value, Schedule):
            for _, number in value.points:
                self._check_end(value, number)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                continue
            if isinstance(number, int) and abs(number) > LARGEST:
                raise UsageError(f"{self.name}={value} is too large for a computer's whole number")
            if math.isnan(number):
                raise UsageError(f"{self.name} is NaN; give a number")
            if math.isinf(number):
                raise UsageError(f"{self.name} is infinite; give a number" + (", or none" if self.optional else ""))
            if self.low is not None and number < self.low:
                raise UsageError(f"{self.name}={value} is too small; it must be at least {self.low:g}")
            if self.above is not None and number <= self.above:
                raise UsageError(f"{self.name}={value} is too small; it must be greater than {self.above:g}")
            if self.high is not None and number > self.high:
                raise UsageError(f"{self.name}={value} is too large; it must be at most {self.high:g}")

    def _check_end(self, schedule: Schedule, number: float) -> None:
        """Check one value of a schedule; it may end at an excluded bound."""
        low = self.above if self.low is None else self.low
        if not math.isfinite(number) or (low is not None and number < low):
            raise UsageError(f"{self.name}={schedule} passes through {number:g}, which is too small or no number")
        if self.high is not None and number > self.high:
            raise UsageError(f"{self.name}={schedule} passes through {number:g}; it must be at most {self.high:g}")


def options(config: type[Settings]) -> tuple[Option, ...]:
    """Every field of a config with its resolved type, its own before those of its parts.

    A subclass that only changes a default keeps the help.
    """
    if config not in _OPTIONS:
        hints = typing.get_type_hints(config)
        found = [_option(config, field, hints[field.name]) for field in dataclasses.fields(config)]
        _OPTIONS[config] = tuple(sorted(found, key=lambda option: config.__mro__.index(option.owner)))
    return tuple(
        dataclasses.replace(option, default=dict(option.default)) if isinstance(option.default, dict) else option
        for option in _OPTIONS[config]
    )


_OPTIONS: dict[Class, tuple[Option, ...]] = {}  # kept, because a tune resolves the settings of hundreds of trials


def title_of(owner: type) -> str:
    """The title of a group of settings: the first line of its docstring."""
    said = (owner.__doc__ or "").strip()
    if not said or said.startswith(f"{owner.__name__}("):  # generated by `dataclass`
        return "Own settings"
    return said.splitlines()[0].rstrip(".")


def _option(config: type, field: dataclasses.Field[object], hint: object) -> Option:
    lineage = [c for c in config.__mro__ if field.name in inspect.get_annotations(c)]
    declared = [c.__dataclass_fields__[field.name].metadata for c in lineage]  # type: ignore[attr-defined]
    metadata: Declared = next((m for m in declared if m), Declared(help=""))
    factory = field.default_factory
    default = factory() if factory is not MISSING else field.default
    return Option(name=field.name, type=hint, default=default, owner=lineage[-1], **metadata)


def unwrap_optional(hint: object) -> tuple[object, bool]:
    """(the type without None, whether None is allowed)."""
    if get_origin(hint) in (Union, types.UnionType):
        inner = [arm for arm in get_args(hint) if arm is not type(None)]
        return (inner[0] if len(inner) == 1 else Union[tuple(inner)]), len(inner) < len(get_args(hint))  # noqa: UP007
    return hint, False


@overload
def coerce(name: str, value: object, hint: type[T]) -> T: ...


@overload
def coerce(name: str, value: object, hint: object) -> Any: ...


def coerce(name: str, value: object, hint: object) -> object:
    """`value` as the type `hint`, from Python, TOML or a command-line string; UsageError naming the key otherwise."""
    inner, optional = unwrap_optional(hint)
    if inner is float and (schedule := as_schedule(name, value)) is not None:
        return schedule
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        value = value.tolist()
    if optional and value in (None, "none", ["none"]):
        return None
    origin = get_origin(inner)
    if origin in (Union, types.UnionType):
        return _word_or_number(name, value, get_args(inner))
    if origin is Literal:
        choices = get_args(inner)
        if value not in choices:
            known = ", ".join(map(str, choices))
            raise UsageError(f"{name}={value!r} is not one of: {known}{did_you_mean(str(value), choices)}")
        return value
    if origin is tuple:
        return _sequence(name, value, get_args(inner)[0])
    if origin is dict:
        return _mapping(name, value)
    if inner is bool:
        return _boolean(name, value)
    if inner is Seconds:
        return _duration(name, value)
    if inner in (int, float):
        return _number(name, value, whole=inner is int)
    if inner is str and not isinstance(value, str):
        named = getattr(value, "__name__", None)
        advice = "write it in quotes" if named is None else f"name it as file.py:{named} or module:{named}"
        raise UsageError(f"{name}={value!r} is not a string; {advice}")
    return value


def _word_or_number(name: str, value: object, arms: tuple[object, ...]) -> object:
    """A value of `int | Literal["auto"]`."""
    words = [word for arm in arms if get_origin(arm) is Literal for word in get_args(arm)]
    (kind,) = (arm for arm in arms if get_origin(arm) is not Literal)
    if value in words:
        return value
    try:
        return coerce(name, value, kind)
    except UsageError:
        wanted = "a whole number" if kind is int else "a number"
        near = did_you_mean(str(value), words)
        raise UsageError(f"{name}={value!r} is neither {wanted} nor {' or '.join(words)}{near}") from None


def _sequence(name: str, value: object, kind: object) -> tuple[object, ...]:
    """Strings are taken as they are; numbers may also be written as one string, `64,64`."""
    parts = list(value) if isinstance(value, (list, tuple)) else [value]
    if kind is not str:
        parts = [
            piece for part in parts for piece in (part.replace(",", " ").split() if isinstance(part, str) else [part])
        ]
    return tuple(coerce(name, part, kind) for part in parts)


def _boolean(name: str, value: object) -> bool:
    words = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is not true or false")
    return value


def _number(name: str, value: object, whole: bool) -> int | float:
    """A number from `100_000`, `100k`, `1M`, `3e-4`, 5 or 5.0."""
    wanted = "a whole number" if whole else "a number"
    number: object = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([-+]?[0-9._]+(?:[eE][-+]?\d+)?|[-+]?inf|nan)\s*([kMG]?)\s*", value)
        try:  # in decimal, because 4.1 · 10⁶ is not an integer in floating point
            number = Decimal(match[1]) * SUFFIXES.get(match[2], 1) if match else None
        except InvalidOperation:
            number = None
    if not isinstance(number, (Real, Decimal)) or isinstance(number, bool):
        ways = "100_000, 100k or 1M" if whole else "100_000, 100k, 1M or 3e-4"
        raise UsageError(f"{name}={value!r} is not {wanted}; write it as {ways}")
    if isinstance(number, int) and abs(number) >= TOO_LARGE:  # a damaged file; printing it could take minutes
        raise UsageError(f"{name} is a number of more digits than can be computed with")
    if not whole:
        return float(number)
    if not math.isfinite(number) or number != math.trunc(number):
        raise UsageError(f"{name}={value!r} is not a whole number")
    return operator.index(math.trunc(number))


def _duration(name: str, value: object) -> float:
    """Seconds from `2h`, `90m`, `1h30m`, `1d12h`, `45s`, or a plain number of them."""
    if not isinstance(value, str) or re.fullmatch(r"\s*[0-9._]+\s*", value):
        return float(_number(name, value, whole=False))
    parts = re.findall(r"([0-9.]+)\s*([dhms])", value)
    if not parts or re.sub(r"([0-9.]+)\s*([dhms])", "", value).strip():
        raise UsageError(f"{name}={value!r} is not a duration; write it as 2h, 90m, 1h30m or 45s")
    return sum(float(_number(name, number, whole=False)) * UNITS[unit] for number, unit in parts)


def _mapping(name: str, value: object) -> dict[str, object]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise UsageError(f"""{name}={value!r} is not JSON ({error}); write it as '{{"key": 1}}'""") from None
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}={value!r} is not a table of keys and values")
    return dict(value)
