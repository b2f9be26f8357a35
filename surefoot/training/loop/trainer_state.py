"""The state of a run in a checkpoint, apart from the policy's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from surefoot.analysis.watch import WatchState
    from surefoot.engine.collecting.collector import CollectorState
    from surefoot.engine.torch.optimizers import LearnerState
    from surefoot.runs.directory import LogState
    from surefoot.training.loop.global_generators import GlobalsState
    from surefoot.training.loop.journal import JournalState
    from surefoot.training.loop.selection import SelectionState
    from surefoot.training.loop.target import TargetState


class TrainerState(TypedDict):
    """Everything that the rest of a run depends on. `Trainer.state_shape` checks it when it is loaded."""

    step: int
    elsewhere: NotRequired[int | None]  # not in runs of 0.1.0
    seconds: float
    logs: LogState  # empty if the run has no directory
    algorithm: dict[str, float]
    learner: LearnerState
    collector: CollectorState
    journal: JournalState
    selection: SelectionState
    target: TargetState
    advice: NotRequired[WatchState | None]  # not in runs of 0.1.0
    globals: GlobalsState | None  # only if the process is the run's own
