"""Stopping at a target: as soon as an evaluation reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np

from surefoot.envs.seeds import derive_seed
from surefoot.schema import Flag, Items, Number, Optional, Record, Row, Shape, Whole
from surefoot.training.evaluation.evaluate import evaluate_agent
from surefoot.training.evaluation.result import Evaluation

if TYPE_CHECKING:
    from surefoot.training.config.run_config import RunConfig
    from surefoot.training.evaluation.agent import Agent
    from surefoot.training.evaluation.evaluate import MakeEnv

FEW = 10  # training episodes that are looked at, and evaluation episodes that are played at first
TRIES = 10  # there are at least so many over the whole run, whatever the training returns say


class Tried(TypedDict):
    step: int
    mean_return: float
    episodes: int


class TargetState(TypedDict):
    first: float | None
    last_step: int
    not_before: int
    tries: NotRequired[int | None]  # earlier versions played the same episodes in each
    passed: bool
    found: tuple[list[float], list[int], int] | None  # returns, lengths, cut


class Target:
    """Decides when to try for the target, and keeps the try that reached it.

    Due: when the last ten training returns have come half of the way from the run's first ones to the target, or
    a tenth of `total_steps` after the last try. A try plays ten episodes; `eval_episodes` others follow if the mean of
    those ten is within one standard error of the target. Until the next try, training takes at least as many steps as
    those ten episodes had, so that looking never costs much more than learning. All of it depends on the run's own
    numbers alone: a resumed run tries where an uninterrupted one does.

    Every try has episodes of its own. The one that reaches the target is lucky more often than not, so that it ends the
    run but is not what the run reports: that is the final evaluation, on episodes that nothing was decided by.
    """

    def __init__(self, config: RunConfig, run_seed: int, make: MakeEnv | None = None) -> None:
        self.wanted, self.run_seed, self.make = config.target_return, run_seed, make
        self.episodes, self.max_steps = config.eval_episodes, config.eval_max_steps
        self.interval = max(1, config.total_steps // TRIES)
        self.first: float | None = None  # mean of the first training returns, from when there are a few
        self.last_step = self.not_before = self.tries = 0
        self.found: Evaluation | None = None  # the one that reached it
        self.passed = False  # reached, and the run was told to go on

    @property
    def open(self) -> bool:
        """There is something to reach yet."""
        return self.wanted is not None and self.make is not None and self.found is None and not self.passed

    def due(self, step: int, recent: Sequence[float]) -> bool:
        """`recent`: the last training returns. To be asked after every update."""
        if not self.open or self.wanted is None:
            return False
        if self.first is None and len(recent) >= FEW:
            self.first = float(np.mean(recent))
        if step < self.not_before:
            return False
        if step >= self.last_step + self.interval:
            return True
        return self.first is not None and float(np.mean(recent[-FEW:])) >= (self.first + self.wanted) / 2.0

    def run(self, agent: Agent, step: int, abandon: Callable[[], bool]) -> Evaluation:
        """Try, by a few episodes or by all; `Abandoned` leaves everything as it was: a resumed run tries here again."""
        assert self.wanted is not None
        few = self._evaluate(agent, min(FEW, self.episodes), "few", abandon)
        found = few if few.episodes == self.episodes else None
        if found is None and few.mean_return + few.std_return / few.episodes**0.5 >= self.wanted:
            found = self._evaluate(agent, self.episodes, "all", abandon)
        self.tries += 1
        self.last_step, self.not_before = step, step + sum(few.lengths)
        if found is not None and found.mean_return >= self.wanted:
            self.found = found
        return found or few

    def _evaluate(self, agent: Agent, episodes: int, which: str, abandon: Callable[[], bool]) -> Evaluation:
        """Episodes that no other evaluation has."""
        make, seed = self.make, derive_seed(self.run_seed, "target", self.tries, which)
        assert make is not None
        return evaluate_agent(agent, make, episodes=episodes, seed=seed, max_steps=self.max_steps, abandon=abandon)

    @property
    def summary(self) -> Tried | None:
        """The try that reached it, for `result.json`."""
        if self.found is None:
            return None
        found = self.found
        return {"step": self.last_step, "mean_return": found.mean_return, "episodes": found.episodes}

    def go_on(self) -> None:
        """The run is to train beyond a target that it has reached."""
        self.found, self.passed = None, True

    def state_dict(self) -> TargetState:
        found = self.found
        return {
            "first": self.first,
            "last_step": self.last_step,
            "not_before": self.not_before,
            "tries": self.tries,
            "passed": self.passed,
            "found": None if found is None else (list(found.returns), list(found.lengths), found.cut),
        }

    def state_shape(self) -> Shape:
        found = Row(Items(Number(), at_least=1), Items(Whole(), at_least=1), Whole())
        return Record(
            first=Optional(Number()),
            last_step=Whole(),
            not_before=Whole(),
            tries=Optional(Whole(), later=True),
            passed=Flag(),
            found=Optional(found),
        )

    def load_state_dict(self, state: TargetState) -> None:
        self.first = None if state["first"] is None else float(state["first"])
        self.last_step, self.not_before = int(state["last_step"]), int(state["not_before"])
        self.tries = int(state.get("tries") or 0)
        self.passed, self.found = bool(state["passed"]), None
        if state["found"] is not None:
            returns, lengths, cut = state["found"]
            found = Evaluation(tuple(map(float, returns)), tuple(map(int, lengths)), int(cut), True)
            if self.wanted is not None and found.mean_return >= self.wanted:  # somebody may have raised it since
                self.found = found
