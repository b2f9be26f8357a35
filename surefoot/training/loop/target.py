"""Stops a run as soon as an evaluation reaches the target return."""

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
    from surefoot.training.loop.selection import Agree

FEW = 10  # training returns that are averaged, and evaluation episodes that are played first
TRIES = 10  # at least this many over the whole run, whatever the training returns


class Tried(TypedDict):
    step: int
    mean_return: float
    episodes: int


class TargetState(TypedDict):
    first: float | None
    last_step: int
    not_before: int
    tries: NotRequired[int | None]  # earlier versions played the same episodes every time
    passed: bool
    found: tuple[list[float], list[int], int] | None  # returns, lengths, cut


class Target:
    """Decides when to test the target, and keeps the attempt that reached it.

    An attempt is due when the average of the last ten training returns is halfway from the run's first ones to the
    target, or a tenth of `total_steps` after the last attempt. It plays ten episodes; `eval_episodes` others follow if
    the mean of those ten is within one standard error of the target. Before the next attempt, training takes at least
    as many steps as those ten episodes had, so that testing never costs much more than learning. All of this depends
    only on the run's own numbers: a resumed run makes the same attempts as an uninterrupted one.

    Every attempt plays new episodes. The one that reaches the target is usually lucky, so it ends the run but is not
    reported as its result: that is the final evaluation, on episodes that influenced no decision.
    """

    def __init__(self, config: RunConfig, run_seed: int, make: MakeEnv | None = None) -> None:
        self.wanted, self.run_seed, self.make = config.target_return, run_seed, make
        self.episodes, self.max_steps = config.eval_episodes, config.eval_max_steps
        self.interval = max(1, config.total_steps // TRIES)
        self.first: float | None = None  # mean of the first ten training returns
        self.last_step = self.not_before = self.tries = 0
        self.found: Evaluation | None = None  # the evaluation that reached the target
        self.passed = False  # reached, and the user asked to continue

    @property
    def open(self) -> bool:
        """Whether there is a target that has not been reached yet."""
        return self.wanted is not None and self.make is not None and self.found is None and not self.passed

    def due(self, step: int, recent: Sequence[float]) -> bool:
        """Call after every update. `recent`: the last training returns."""
        if not self.open or self.wanted is None:
            return False
        if self.first is None and len(recent) >= FEW:
            self.first = float(np.mean(recent))
        if step < self.not_before:
            return False
        if step >= self.last_step + self.interval:
            return True
        return self.first is not None and float(np.mean(recent[-FEW:])) >= (self.first + self.wanted) / 2.0

    def run(
        self, agent: Agent, step: int, abandon: Callable[[], bool], agree: Agree = lambda found: found
    ) -> Evaluation:
        """Make an attempt, with ten episodes or all. `Abandoned` changes nothing: a resumed run tries again here.

        `agree`: what counts of the evaluations of several processes.
        """
        assert self.wanted is not None
        few = agree(self._evaluate(agent, min(FEW, self.episodes), "few", abandon))
        found = few if few.episodes == self.episodes else None
        if found is None and few.mean_return + few.std_return / few.episodes**0.5 >= self.wanted:
            found = agree(self._evaluate(agent, self.episodes, "all", abandon))
        self.tries += 1
        self.last_step, self.not_before = step, step + sum(few.lengths)
        if found is not None and found.mean_return >= self.wanted:
            self.found = found
        return found or few

    def _evaluate(self, agent: Agent, episodes: int, which: str, abandon: Callable[[], bool]) -> Evaluation:
        """Evaluate on episodes that no other evaluation plays."""
        make, seed = self.make, derive_seed(self.run_seed, "target", self.tries, which)
        assert make is not None
        return evaluate_agent(agent, make, episodes=episodes, seed=seed, max_steps=self.max_steps, abandon=abandon)

    @property
    def summary(self) -> Tried | None:
        """The attempt that reached the target, for `result.json`."""
        if self.found is None:
            return None
        found = self.found
        return {"step": self.last_step, "mean_return": found.mean_return, "episodes": found.episodes}

    def go_on(self) -> None:
        """The user wants to train beyond a target that was reached."""
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
            if self.wanted is not None and found.mean_return >= self.wanted:  # the target may have been raised since
                self.found = found
