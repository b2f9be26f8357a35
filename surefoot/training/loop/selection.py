"""Evaluates during training to choose the best checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

from surefoot.envs.seeds import derive_seed
from surefoot.schema import Number, Optional, Record, Row, Shape, Whole
from surefoot.training.evaluation.evaluate import evaluate_agent

if TYPE_CHECKING:
    from surefoot.training.config.run_config import RunConfig
    from surefoot.training.evaluation.agent import Agent
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.evaluation.result import Evaluation

    Agree: TypeAlias = Callable[[Evaluation], Evaluation]


class SelectionState(TypedDict):
    next_step: int
    last_step: int
    best: tuple[int, float] | None
    waited: NotRequired[int | None]  # earlier versions had no patience


class Selection:
    """Plays the same greedy episodes every `eval_every` steps and remembers the best.

    Their seeds are not those of the final evaluation: the best of many checkpoints is lucky on the episodes that chose
    it, and its return on them would be too high.
    """

    def __init__(self, config: RunConfig, run_seed: int, make: MakeEnv | None = None) -> None:
        self.every, self.episodes, self.max_steps = config.eval_every, config.selection_episodes, config.eval_max_steps
        self.seed, self.make = derive_seed(run_seed, "selection"), make
        self.next_step, self.last_step = self.every or 0, 0
        self.best: tuple[int, float] | None = None  # (step, mean return)
        self.patience, self.waited = config.patience, 0  # evaluations since the best one

    def due(self, step: int, *, last: bool = False) -> bool:
        """Every `eval_every` steps, and at the end of the run, because the last policy may be the best."""
        if self.every is None or self.make is None:
            return False
        return step >= self.next_step or (last and step != self.last_step)

    def run(
        self, agent: Agent, step: int, abandon: Callable[[], bool], agree: Agree = lambda found: found
    ) -> Evaluation:
        """Evaluate. `Abandoned` changes nothing, so a resumed run evaluates here again.

        `agree`: what counts of the evaluations of several processes.
        """
        assert self.make is not None
        assert self.every is not None
        found = evaluate_agent(
            agent,
            self.make,
            episodes=self.episodes,
            seed=self.seed,
            max_steps=self.max_steps,
            abandon=abandon,
        )
        found = agree(found)
        self.next_step, self.last_step = step - step % self.every + self.every, step
        if self.best is None or found.mean_return > self.best[1]:
            self.best, self.waited = (step, found.mean_return), 0
        else:
            self.waited += 1
        return found

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` evaluations were no better than the best before them."""
        return self.patience is not None and self.waited >= self.patience

    def go_on(self) -> None:
        """Reset the count: the user wants the run to continue although its patience was exhausted."""
        self.waited = 0

    def state_dict(self) -> SelectionState:
        return {"next_step": self.next_step, "last_step": self.last_step, "best": self.best, "waited": self.waited}

    def state_shape(self) -> Shape:
        best = Optional(Row(Whole(), Number()))
        return Record(next_step=Whole(), last_step=Whole(), best=best, waited=Optional(Whole(), later=True))

    def load_state_dict(self, state: SelectionState) -> None:
        self.next_step, self.last_step = state["next_step"], state["last_step"]
        self.best = None if state["best"] is None else (int(state["best"][0]), float(state["best"][1]))
        self.waited = int(state.get("waited") or 0)


def as_row(found: Evaluation) -> dict[str, float]:
    """The columns that an evaluation adds to its row of metrics."""
    low, high = found.interval
    return {
        "eval_return": found.mean_return,
        "eval_return_low": low,
        "eval_return_high": high,
        "eval_length": found.mean_length,
    }
