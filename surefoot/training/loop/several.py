"""Iterations that an engine has done for several runs at once: a run deals with its own in one go."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from surefoot.engine.episodes import MOST_ENVS, rows_of

if TYPE_CHECKING:
    from surefoot.engine.contract import Several
    from surefoot.training.trainer import Trainer


def take_several(trainer: Trainer, start: float) -> bool:
    """Deal with all that are over. False: none is, or somebody wants to hear of each, so they are taken one by one."""
    ahead = trainer.ahead
    if ahead is None or not ahead.more or trainer.envs.num_envs > MOST_ENVS:
        return False
    with trainer.timer.phase("iterate"):
        several = ahead.several(trainer)
    if several is None:
        return False
    trainer.run_errands()
    _tell_advice(trainer, several)
    for message in trainer.engines.engine.take_notices():
        trainer.warn(message)
    trainer.step += several.steps * several.updates
    trainer.journal.add_several(several)
    trainer.saving.behind, trainer.seconds = True, perf_counter() - start
    for callback in trainer.callbacks:
        callback.on_updates(trainer, several)
    turn_over(trainer)
    return True


def _tell_advice(trainer: Trainer, several: Several) -> None:
    steps = trainer.step + several.steps * (1 + several.number)
    trainer.advice.add_episodes(rows_of(several.episodes), steps.tolist())


def turn_over(trainer: Trainer) -> None:
    """Stop if there is no time for another turn of the loop."""
    trainer.deadline.turn()
    if trainer.deadline.near:
        trainer.suspend("max_time")
