"""Watches a run with the rules of the diagnosis; each rule reports once. Used by training and by `diagnose`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from surefoot.analysis.memory import Memory, MemoryState, memory_shape
from surefoot.analysis.rule import Facts, Moment, Rule
from surefoot.analysis.rules import RULES
from surefoot.schema import Items, MapOf, Number, Optional, Record, Shape, Text, Whole
from surefoot.schema import Row as Pair

Row = Mapping[str, float | None]
Episodes = Iterable[tuple[int, float, int]]  # (env, return, length) of each


@dataclass(frozen=True)
class Advice:
    """What is wrong with a run, and what to try."""

    rule: str
    text: str  # in full: the evidence, then the remedy
    evidence: str
    flag: str | None  # the first one to try
    since_update: int


class Warned(TypedDict):
    name: str
    step: int
    message: str


class WatchState(TypedDict):
    said: list[Warned]
    held: dict[str, tuple[int, int]]
    last: tuple[int, int]
    ended: int
    first: float | None
    memory: NotRequired[MemoryState | None]  # not in runs of 0.1.0


class Watch:
    """Applies the rules to a run's rows, one after the other, and remembers the advice given."""

    def __init__(self, facts: Facts, rules: tuple[Rule, ...] = RULES) -> None:
        self.facts, self.rules, self._names = facts, rules, {rule.name for rule in rules}
        self.said: list[Warned] = []
        self.advice: dict[str, Advice] = {}  # what was said since this process began
        self._memory = Memory()
        self._held: dict[str, tuple[int, int]] = {}  # rule -> (step before the first row that it held in, rows since)
        self._last = (0, 0)  # (step of the last row, episodes then)
        self._ended = 0  # step of the last row in which an episode ended
        self._first: float | None = None  # mean return of the first of them

    def add_episodes(self, episodes: Episodes, step: int | list[int]) -> None:
        """Those that ended since the last call, up to this step. A list has one for each episode."""
        self._memory.add_episodes(episodes, step)

    def look(self, row: Row) -> list[str]:
        """The warnings that this row brings, the likeliest cause first."""
        (before, episodes), self._last = self._last, (int(row.get("step") or 0), int(row.get("episodes") or 0))
        step = self._last[0]
        if self._last[1] > episodes:
            self._ended = step
        if self._first is None:
            self._first = row.get("episode_return")
        self._memory.add_row(row)
        first = math.nan if self._first is None else self._first
        now = Moment(row, self.facts, step - self._ended, first, self._memory, step)
        return [message for rule in self.rules for message in self._ask(rule, now, before)]

    def _ask(self, rule: Rule, now: Moment, before: int) -> list[str]:
        if (rule.alone and self._others_spoke(rule.name)) or not rule.when(now):
            self._held.pop(rule.name, None)
            self._memory.since.pop(rule.name, None)
            if rule.alone and now.trend == 1:
                self._withdraw(rule.name)
            return []
        first, rows = self._held.get(rule.name, (before, 0))
        self._held[rule.name] = first, rows + 1
        since = self._memory.since.setdefault(rule.name, int(now.row.get("update") or 0))
        step = self._last[0]
        if rows + 1 < rule.rows or step - first < rule.share * self.facts.total_steps:
            return []
        evidence, remedy = rule.evidence(now), rule.remedy(now)
        flag = re.search(r"--[a-z][a-z-]*", remedy)
        message = rule.say(now)
        self.advice.setdefault(rule.name, Advice(rule.name, message, evidence, flag and flag[0], since))
        return self.once(rule.name, step, message)

    def _others_spoke(self, name: str) -> bool:
        return bool({warning["name"] for warning in self.said} & self._names - {name})

    def _withdraw(self, name: str) -> None:
        """The return has risen after all: the run was slow, not ill."""
        self.said = [warning for warning in self.said if warning["name"] != name]
        self.advice.pop(name, None)

    def once(self, name: str, step: int, message: str) -> list[str]:
        """The message, unless there was one of this name."""
        if any(warning["name"] == name for warning in self.said):
            return []
        self.said.append({"name": name, "step": step, "message": message})
        return [message]

    def state_dict(self) -> WatchState:
        return {
            "said": [warning.copy() for warning in self.said],
            "held": dict(self._held),
            "last": self._last,
            "ended": self._ended,
            "first": self._first,
            "memory": self._memory.state_dict(),
        }

    def state_shape(self) -> Shape:
        warning = Record(name=Text(), step=Whole(), message=Text())
        return Record(
            said=Items(warning),
            held=MapOf(Pair(Whole(), Whole())),
            last=Pair(Whole(), Whole()),
            ended=Whole(),
            first=Optional(Number()),
            memory=Optional(memory_shape(), later=True),
        )

    def load_state_dict(self, state: WatchState) -> None:
        self.said = [warning.copy() for warning in state["said"]]
        self._held = {name: (int(first), int(rows)) for name, (first, rows) in state["held"].items()}
        self._last = (int(state["last"][0]), int(state["last"][1]))
        self._ended = int(state["ended"])
        self._first = None if state["first"] is None else float(state["first"])
        if (memory := state.get("memory")) is not None:
            self._memory.load_state_dict(memory)


def first_cause(said: Sequence[Warned], rules: tuple[Rule, ...] = RULES) -> Warned | None:
    """The warning that names the likeliest cause; None if no rule has spoken."""
    order = {rule.name: place for place, rule in enumerate(rules)}
    return min((warned for warned in said if warned["name"] in order), key=lambda w: order[w["name"]], default=None)
