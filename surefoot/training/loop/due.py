"""What may be due between two updates: a test of the target, an evaluation, a row of metrics, a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from surefoot.envs.playing import Abandoned
from surefoot.training.callbacks import Callback
from surefoot.training.loop.selection import as_row

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer
    from surefoot.types import MetricsRow


def evaluate_log_save(trainer: Trainer) -> None:
    """Do what is due. If the run is being suspended, a resumed run does the rest."""
    saving, selection, journal = trainer.saving, trainer.selection, trainer.journal
    trainer.follow()
    saving.look(trainer)
    before, found, complete = selection.best, {}, _try_target(trainer)
    if complete and selection.due(trainer.step, last=trainer.spent or trainer.stopped):
        with trainer.timer.phase("eval"):
            found = _evaluate(trainer)
        complete = bool(found)
    if selection.exhausted and not trainer.over:
        trainer.end("patience")
    if not complete:
        if saving.behind:
            trainer.save()
        return
    if journal.open and (found or journal.due(trainer.step) or trainer.spent or trainer.stopped):
        timing = {"seconds": trainer.seconds, "steps_per_second": trainer.steps_per_second}
        timing |= {f"seconds_{name}": seconds for name, seconds in trainer.timer.seconds.items()}
        log = partial(_log, trainer, journal.cut(trainer.step), found, timing)
        if _may_wait(trainer, found):
            trainer.errands.append(log)
        else:
            log()
        saving.behind = True
    improved = selection.best != before
    if improved or (saving.behind and (trainer.over or saving.due(trainer.step))):
        with trainer.timer.phase("save"):
            saved = trainer.save(best=improved, wait=improved or trainer.over)
            if improved and not trainer.group.agree(saved):
                selection.best = before  # it was not saved


def _try_target(trainer: Trainer) -> bool:
    """Stop the run if its target return is reached. False if a stop was requested before that was known."""
    target = trainer.target
    if target.due(trainer.step, trainer.recent) and not trainer.over:  # at the end, the final evaluation decides
        with trainer.timer.phase("eval"):
            try:
                tried = target.run(trainer.agent, trainer.step, trainer.abandon, trainer.group.agree)
            except Abandoned:
                return False
        trainer.saving.behind = True
        for callback in trainer.callbacks:
            callback.on_try(trainer, tried)
    if target.found is not None:
        trainer.end("target_return")
    return True


def _evaluate(trainer: Trainer) -> dict[str, float]:
    """The columns of an evaluation; empty if a stop was requested before it was finished."""
    try:
        evaluation = trainer.selection.run(trainer.agent, trainer.step, trainer.abandon, trainer.group.agree)
    except Abandoned:
        return {}
    for callback in trainer.callbacks:
        callback.on_evaluation(trainer, evaluation)
    return as_row(evaluation)


def _may_wait(trainer: Trainer, found: dict[str, float]) -> bool:
    """Whether the row may be written while a GPU does the next iterations, which are begun for many runs at once."""
    if trainer.ahead is None or not trainer.ahead.at_once or found or trainer.over:
        return False
    return all(one.may_wait or type(one).on_log is Callback.on_log for one in trainer.callbacks)


def _log(trainer: Trainer, row_of: Callable[[], MetricsRow], found: dict[str, float], timing: dict[str, float]) -> None:
    with trainer.timer.phase("log"):
        row = {**row_of(), **found}
        for callback in trainer.callbacks:
            callback.on_log(trainer, row, timing)
        for message in trainer.advice.look(row):
            trainer.warn(message)
