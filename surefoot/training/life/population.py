"""Several runs at once in one process, each with its own directory. An engine does their iterations together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.engine.contract import Turn
from surefoot.errors import SurefootError, UsageError
from surefoot.runs.directory import ROOT, escape
from surefoot.training.callbacks import Callback
from surefoot.training.life.signals import Interrupted
from surefoot.training.loop.ahead import Ahead

if TYPE_CHECKING:
    from surefoot.engine.contract import Together
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.reports.population import PopulationProgress
    from surefoot.training.trainer import Trainer

INSTEAD = "`surefoot sweep` trains runs side by side in processes of their own"


def joined(trainers: Sequence[Trainer]) -> Together:
    """Have the first run's engine do the iterations of all. An error if it cannot."""
    engine = trainers[0].engines.engine
    together = engine.together([(one.collector, one.learner, one.algorithm) for one in trainers])
    if isinstance(together, str):
        raise UsageError(f"these runs cannot be trained at once: {together}. {INSTEAD}")
    for agent, trainer in enumerate(trainers):
        trainer.ahead = Ahead(together.member(agent))
    return together


class Population:
    """Lets runs take turns: all that are ready begin their iterations together, then each deals with its own.

    `runs`: the loops of the trainers, paused before each iteration (`Trainer.turns`, or a session around it). A run
    that ends or fails leaves the others alone.
    """

    def __init__(
        self,
        trainers: Sequence[Trainer],
        together: Together,
        runs: Sequence[Generator[None, None, object]],
        progress: PopulationProgress | None = None,
    ) -> None:
        self.trainers, self.together, self.progress = trainers, together, progress
        self.open = dict(enumerate(runs))
        self.results: dict[int, object] = {}  # of those that are over: what their loop returned, or their error

    def train(self) -> None:
        """Until the last run is over. What interrupts one of them, apart from its own end, interrupts all."""
        try:
            while self.open:
                if turns := self._turns():
                    with self.trainers[0].held():
                        self.together.begin(turns)
                self._meanwhile()
                if self.progress is not None:
                    self.progress.show(self.trainers)
        except BaseException as error:
            for agent in list(self.open):
                self._throw(agent, error)
            raise

    def _turns(self) -> list[Turn]:
        """Every run goes on to its next iteration."""
        turns = []
        for agent in list(self.open):
            trainer = self.trainers[agent]
            if self._advance(agent) and trainer.ahead is not None:
                remaining = trainer.ahead.turns(trainer, self.together.most)
                turns += [Turn(agent, trainer.update, remaining)] if remaining else []
        return turns

    def _meanwhile(self) -> None:
        """While the device works: what each run has put off."""
        for agent in list(self.open):
            try:
                self.trainers[agent].run_errands()
            except Exception as error:
                self._throw(agent, error, own=error)

    def _advance(self, agent: int) -> bool:
        """Whether the run is not over."""
        try:
            next(self.open[agent])
            return True
        except StopIteration as over:
            self.results[agent] = over.value
        except (Exception, Interrupted) as error:  # a run that was asked to stop has saved itself
            self.results[agent] = error
        except BaseException as error:
            self.results[agent] = error
            del self.open[agent]
            raise
        del self.open[agent]
        return False

    def _throw(self, agent: int, error: BaseException, own: BaseException | None = None) -> None:
        """The run ends with this error, or gets one of its own to add its notes to."""
        if own is None and isinstance(error, KeyboardInterrupt):
            own = KeyboardInterrupt()
        elif own is None:
            own = SurefootError(f"the runs that were trained at once ended together: {type(error).__name__}: {error}")
        try:
            self.open.pop(agent).throw(own)
        except BaseException as left:
            self.results[agent] = left


def require_unseen(callbacks: Sequence[Callback]) -> None:
    """A callback may not look at tensors: while runs are trained at once, they are not in the runs' own policies."""
    reading = [type(one).__name__ for one in callbacks if one.reads_tensors]
    if reading:
        raise UsageError(
            f"the callback {reading[0]} may read the policy, which runs that are trained at once keep elsewhere. If it "
            f"does not, say reads_tensors = False in its class. {INSTEAD}"
        )


def place_of(folder: str | Path | None, name: str, seed: int) -> Path | None:
    """The directory of the run with these settings and this seed; None: one of the usual name."""
    return None if folder is None else Path(folder) / "-".join(filter(None, (name, f"s{seed}")))


def new_folder(config: TrainConfig) -> Path:
    """For runs of several settings, whose usual names would not tell them apart: `runs/ENV/ALGO/TIME`."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return ROOT / escape(config.env.env) / escape(config.algo_name) / stamp
