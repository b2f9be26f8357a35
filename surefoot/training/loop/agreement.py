"""Several processes of one run tell each other what happened, and decide alike. One process alone is asked nothing.

A signal arrives in each process at another moment, or in one of them only. So it is no more than a request until all
have heard of it, at the same point of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from surefoot.engine.episodes import Episode

if TYPE_CHECKING:
    from surefoot.training.trainer import Trainer
    from surefoot.types import Rollout


def of_all(trainer: Trainer, rollout: Rollout) -> tuple[int, Sequence[Episode]]:
    """The steps of the rollout and the episodes that ended in it, in all processes, with the envs of the whole run."""
    group, tracker = trainer.group, trainer.collector.tracker
    if group.size == 1:
        return rollout.num_steps, tracker.take()
    first = group.index * trainer.envs.num_envs
    own = [asdict(replace(episode, env=first + episode.env)) for episode in tracker.take()]
    parts = group.gather_plain((rollout.num_steps, own))
    return sum(steps for steps, _ in parts), [Episode(**episode) for _, episodes in parts for episode in episodes]


def agree(trainer: Trainer) -> None:
    """Whoever is asked to stop or to save asks all; the first process decides when else to save."""
    group, saving = trainer.group, trainer.saving
    if group.size == 1:
        return
    saving.agreed = None
    told = group.gather_plain((trainer.request, saving.asked, saving.due(trainer.step), saving.behind))
    _, _, saving.agreed, saving.behind = told[0]  # only the first one knows whether the disk took the last checkpoint
    for request, asked, *_ in told:
        if request is not None:
            trainer.end(request[0], suspend=request[1])
        if asked is not None:
            saving.agreed = True
            saving.asked = saving.asked or asked


def part(trainer: Trainer) -> None:
    """The training is over: from here on, each process decides on its own."""
    trainer.free = True
    if trainer.request is not None:  # if it came too late for the others, it counts here only
        trainer.end(trainer.request[0], suspend=trainer.request[1])
