"""The settings that a tune searches, as positions for the sampler and as values for the runs."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from surefoot.errors import UsageError, did_you_mean
from surefoot.ranges import Among, Between, Range
from surefoot.settings import Option, coerce
from surefoot.sweep.grid import parse_assignments, split_values
from surefoot.sweep.plan import as_text
from surefoot.training.config.resolve import all_options

Position = float | int | str  # what the sampler draws: a number, the place in a list, or the text of a value
NOT_SEARCHED = ("env", "algo", "seed", "total_steps", "name", "tags", "threads", "max_time", "eval_episodes")

ROLLOUT = ("num_envs", "rollout_length")  # their product is the steps of a rollout
FEWEST_UPDATES = 4  # on the first rung


@dataclass(frozen=True)
class Dimension:
    """One setting and the values to try."""

    name: str
    range: Range
    whole: bool = False  # a whole number

    @property
    def ordered(self) -> bool:
        """Whether the sampler may take neighbouring positions for similar ones."""
        return isinstance(self.range, Between) or self.range.ordered

    def value(self, position: object) -> object:
        """The setting at a position that the sampler drew."""
        if isinstance(self.range, Between):
            assert isinstance(position, (int, float))
            return int(position) if self.whole else self.range.rounded(position)
        if self.ordered:
            assert isinstance(position, int)
            return self.range.values[position]
        return next(value for value in self.range.values if as_text(value) == position)

    def position(self, value: object) -> Position:
        """The position of a value, or the nearest one; a value that has none is a KeyError."""
        if isinstance(self.range, Between):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise KeyError(value)
            return min(max(value, self.range.low), self.range.high)
        if value in self.range.values:
            return self.range.values.index(value) if self.ordered else as_text(value)
        if not self.ordered or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise KeyError(value)
        distances = [abs(one - value) for one in self.range.values if isinstance(one, (int, float))]
        return distances.index(min(distances))

    def describe(self) -> str:
        """The range in the form that `--search` takes: `0.0001..0.005:log` or `tanh,relu`."""
        if isinstance(self.range, Between):
            return f"{self.range.low:g}..{self.range.high:g}{':log' if self.range.log else ':linear'}"
        return as_choices(self.range.values)


Space = Mapping[str, Dimension]


def space_of(
    algo: str,
    fixed: Container[str],
    defaults: Mapping[str, object],
    given: Mapping[str, str],
    *,
    only: bool = False,
) -> Space:
    """The declared ranges of an algorithm's settings without those that are fixed, and what `--search` adds.

    Declared ranges are widened to contain the defaults, which are the first trial. `only`: what is given, and no more.
    """
    known = all_options(algo)
    declared = {
        name: Dimension(name, option.search.including(defaults[name]), _is_whole(option))
        for name, option in known.items()
        if option.search is not None and name not in fixed
    }
    found = {} if only else declared
    for name, text in given.items():
        if name not in known or name in NOT_SEARCHED:
            near = did_you_mean(name, known) if name not in known else ""
            raise UsageError(f"--search {name}={text}: this is not a setting of {algo} to search{near}")
        if name in fixed:
            raise UsageError(f"'{name}' is both fixed and searched; give it once")
        found[name] = _given(known[name], text, declared.get(name))
    if not found:
        raise UsageError(
            f"nothing to search: no setting of {algo} is left; fix fewer, or name one: --search gamma=0.9,0.99"
        )
    return dict(sorted(found.items()))


def _is_whole(option: Option) -> bool:
    return option.type is int and isinstance(option.search, Between)


def with_short_rollouts(space: Space, usual: Mapping[str, object], steps: int, given: Container[str]) -> Space:
    """The space without rollouts that leave too few updates in so many steps. What is given stays as it is.

    The largest values are dropped one by one, where they are furthest above the usual ones.
    """
    found = dict(space)
    while True:
        largest = {name: _largest(found.get(name), usual[name]) for name in ROLLOUT if name in usual}
        if len(largest) < len(ROLLOUT) or math.prod(largest.values()) * FEWEST_UPDATES <= steps:
            return found
        excess = {name: number / _number(usual[name]) for name, number in largest.items() if name not in given}
        name = max(excess, key=lambda one: excess[one], default="")
        if not name or excess[name] <= 1:
            return found
        dimension = found[name]
        assert isinstance(dimension.range, Among)
        found[name] = replace(dimension, range=Among(dimension.range.values[:-1]))


def _largest(dimension: Dimension | None, usual: object) -> float:
    if dimension is None:
        return _number(usual)
    found = dimension.range
    return found.high if isinstance(found, Between) else max(map(_number, found.values))


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return value


def as_choices(values: Sequence[object]) -> str:
    """Values as `--search` takes them."""
    texts = [as_text(value).replace("+", ",") for value in values]
    return (";" if any("," in text for text in texts) else ",").join(texts)


def parse_search(words: Sequence[str]) -> dict[str, str]:
    """Ranges by setting, from `learning_rate=1e-4..1e-2:log` or `gamma=0.9,0.99`."""
    return parse_assignments("--search", words, "--search learning_rate=1e-4..1e-2:log, or gamma=0.9,0.99")


def _given(option: Option, text: str, declared: Dimension | None) -> Dimension:
    """What the user wants to be searched, checked as the setting's values are."""
    ends = re.fullmatch(r"([^.,;]+(?:\.[^.,;]+)?)\.\.([^:]+)(:log|:linear)?", text)
    if ends is None:
        values = tuple(dict.fromkeys(_checked(option, piece) for piece in split_values(text)))
        if len(values) < 2:
            raise UsageError(f"--search {option.name}={text}: give two values or more, or a range: LOW..HIGH")
        return Dimension(option.name, _among(values))
    low, high = (_checked(option, end) for end in (ends[1], ends[2]))
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or isinstance(low, bool):
        raise UsageError(f"--search {option.name}={text}: only numbers have a range; list the values: A,B")
    if low >= high:
        raise UsageError(f"--search {option.name}={text}: the first number must be the lower one")
    usual = declared.range.log if declared is not None and isinstance(declared.range, Between) else False
    log = ends[3] == ":log" or (ends[3] is None and (usual or Between(low, high).decades >= 1))
    if log and low <= 0:
        raise UsageError(f"--search {option.name}={text}: a logarithmic range begins above zero")
    return Dimension(option.name, Between(low, high, log), isinstance(low, int) and isinstance(high, int))


def _among(values: tuple[object, ...]) -> Among:
    found = Among(values)
    return Among(tuple(sorted(values, key=lambda value: float(str(value))))) if found.ordered else found


def _checked(option: Option, text: str) -> object:
    value: object = coerce(option.name, text, option.type)
    option.check(value)
    return value


def encode(space: Space, values: Mapping[str, object]) -> dict[str, Position]:
    """The positions of settings, the nearest where a value is not in the space; settings without one are left out."""
    found: dict[str, Position] = {}
    for name, dimension in space.items():
        if name in values:
            try:
                found[name] = dimension.position(values[name])
            except KeyError:
                continue
    return found


def decode(space: Space, positions: Mapping[str, object]) -> dict[str, object]:
    """The settings at these positions."""
    return {name: dimension.value(positions[name]) for name, dimension in space.items()}
