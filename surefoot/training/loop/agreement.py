"""Several processes of one run tell each other what happened, and decide alike. One process alone is asked nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.engine.episodes import Episode
    from surefoot.training.trainer import Trainer


def all_episodes(trainer: Trainer) -> list[Episode]:
    """The episodes that ended in the last rollout, those of the other processes too, with the envs of the whole run."""
    own, group = trainer.collector.tracker.take(), trainer.group
    if group.size == 1:
        return own
    first = group.index * trainer.envs.num_envs
    numbered = [replace(episode, env=first + episode.env) for episode in own]
    return [episode for episodes in group.gather(numbered) for episode in episodes]


def agree(trainer: Trainer) -> None:
    """Whoever is asked to stop stops all; the first process decides when to save."""
    group = trainer.group
    if group.size == 1:
        return
    trainer.saving.agreed = None
    due = trainer.saving.due(trainer.step)
    for reason, suspended, asked in group.gather((trainer.stop_reason, trainer.suspended, trainer.saving.asked)):
        if reason is not None and trainer.stop_reason is None:
            trainer.stop_reason, trainer.suspended = reason, suspended
        if asked is not None and trainer.saving.asked is None:
            trainer.saving.ask(asked)
    trainer.saving.agreed = group.agree(due)
