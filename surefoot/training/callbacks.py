"""Your own code at the documented points of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.engine.contract import Several
    from surefoot.training.evaluation.result import Evaluation
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow, Rollout


class Callback:
    """Override what you need. Every method gets the trainer; `trainer.stop("why")` ends the run after this update.

    Order in each iteration: on_rollout (collected, not yet learned from), on_update (learned), on_log (a row was
    written; not every iteration). A callback that raises ends the run as failed, with its own traceback.
    """

    # Whether it may look at the policy, the rollout or whatever else training changes on a device. A GPU works on the
    # next update while callbacks run that do not.
    reads_tensors = True
    # Whether `on_log` only writes down what it is told, so that it may be told a little later. For our own.
    may_wait = False

    def on_start(self, trainer: Trainer) -> None:
        """Everything is built; no env has been stepped yet."""

    def on_rollout(self, trainer: Trainer, rollout: Rollout) -> None:
        """`rollout` was collected. Its tensors are reused for the next one: copy what you keep."""

    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """The policy was updated; `metrics` are those of this update."""

    def on_updates(self, trainer: Trainer, several: Several) -> None:
        """Several updates were done in one go. For our own: it is called instead of `on_update`, where there is one."""

    def on_log(self, trainer: Trainer, row: MetricsRow, timing: dict[str, float]) -> None:
        """A row of metrics is written; whatever you add to `row` is written with it."""

    def on_evaluation(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """The policy was evaluated: during training (`--eval-every`), or at its end (`trainer.over`)."""

    def on_try(self, trainer: Trainer, evaluation: Evaluation) -> None:
        """`--target-return` was tested: with ten episodes or, if those were promising, with `eval_episodes` others."""

    def on_warning(self, trainer: Trainer, message: str) -> None:
        """Something went wrong but the run continues: a full disk, a tracker that is down, a policy that collapses."""

    def on_end(self, trainer: Trainer) -> None:
        """Training is over (also after an error or an interrupt)."""

    def on_exit(self, trainer: Trainer, outcome: str) -> None:
        """The run is leaving this process: done, interrupted or failed. The last call; all files are written."""
