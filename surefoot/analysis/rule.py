"""What a rule of the diagnosis is, and what it may look at: the run's facts, a row of metrics, and what led to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from surefoot.analysis.memory import Memory

LARGEST = 2**63  # no setting is larger


@dataclass(frozen=True)
class Facts:
    """What the rules know about a run besides its metrics."""

    env: str
    num_envs: int
    total_steps: int
    time_limit: int | None = None  # longest episode, where the env or the user declares one
    discrete: bool = False  # no part of an action is continuous, so that an entropy of 0 is the least
    settings: Mapping[str, object] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """A setting that is a number; NaN, which no comparison holds for, where it is not."""
        found = self.settings.get(name)
        known = isinstance(found, (int, float)) and abs(found) < LARGEST  # a damaged file may have any integer
        return float(found) if known else math.nan  # type: ignore[arg-type]

    @property
    def horizon(self) -> float:
        """How many steps ahead γ looks."""
        return 1.0 / max(1e-9, 1.0 - self["gamma"])

    def now(self, *names: str) -> str:
        """Those flags that the run's algorithm has, with their values: `--learning-rate (now 0.001)`."""
        known = {name: self.settings[name] for name in names if self.settings.get(name) is not None}
        return " or ".join(f"--{name.replace('_', '-')} (now {value})" for name, value in known.items())


@dataclass(frozen=True)
class Moment:
    """A row of metrics and what led to it."""

    row: Mapping[str, float | None]
    facts: Facts
    quiet: int = 0  # steps since an episode ended
    first_return: float = math.nan  # from the first row in which episodes ended
    memory: Memory = field(default_factory=Memory)
    step: int = 0

    def __getitem__(self, name: str) -> float:
        """A metric; NaN, which no comparison holds for, where there is none. Some are not measured in every update:
        if the row does not have the column, the last value stands.
        """
        found = self.row.get(name) if name in self.row else self.memory.last.get(name)
        return math.nan if found is None else float(found)

    def has(self, name: str) -> bool:
        return not math.isnan(self[name])

    @property
    def certain(self) -> bool:
        """A policy over discrete actions acts almost without chance."""
        return self.facts.discrete and self["entropy"] < 0.05

    @property
    def trend(self) -> int | None:
        """1 if returns are higher than at the start beyond what chance explains, -1 if lower, else 0."""
        return self.memory.series["episode_return"].trend

    @property
    def unimproved(self) -> bool:
        return self.trend in (0, -1)

    @property
    def best_critic(self) -> float:
        """The highest explained variance so far."""
        return self.memory.series["explained_variance"].highest

    @property
    def usual_critic(self) -> float:
        """The median explained variance so far."""
        return self.memory.series["explained_variance"].median

    @property
    def deviation(self) -> float:
        """Mean standard deviation of the continuous actions; NaN if there are none."""
        found = [value for name, value in self.memory.last.items() if name.startswith("std/")]
        return sum(found) / len(found) if found else math.nan


@dataclass(frozen=True)
class Rule:
    """One illness: reported once `when` has held in `rows` consecutive rows that span this `share` of the run."""

    name: str
    reads: tuple[str, ...]  # columns of metrics.jsonl
    when: Callable[[Moment], bool]
    evidence: Callable[[Moment], str]
    remedy: Callable[[Moment], str]
    rows: int = 1
    share: float = 0.0
    alone: bool = False  # says nothing where another rule has spoken: it names what is left when all else looks well

    def say(self, now: Moment) -> str:
        return f"{self.evidence(now)}. {self.remedy(now)}"
