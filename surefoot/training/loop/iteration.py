"""One iteration of the training loop: a rollout is collected and learned from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from surefoot.engine.contract import Done
from surefoot.engine.episodes import of_first_envs, rows_of
from surefoot.engine.torch.modes import own_modes
from surefoot.errors import did_you_mean
from surefoot.training.loop.agreement import of_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from surefoot.engine.episodes import Episode
    from surefoot.training.trainer import Trainer
    from surefoot.types import Rollout


def iterate(trainer: Trainer) -> Done:
    """The next iteration: the engine's own if it does whole ones, otherwise part by part."""
    expected = trainer.engines.learns_in_pytorch
    done = _whole(trainer) or _part_by_part(trainer)
    for message in trainer.engines.engine.take_notices():
        trainer.warn(message)
    if done.steps and trainer.engines.learns_in_pytorch != expected:
        trainer.warn(f"the update does not do what the algorithm's spec says: {trainer.engines}")
    return done


def _whole(trainer: Trainer) -> Done | None:
    if trainer.ahead is None:
        return None
    with trainer.timer.phase("iterate"):
        done = trainer.ahead.take(trainer)
    if done is not None:
        _tell_advice(trainer, done.episodes, trainer.step + done.steps)
        trainer.run_errands()
    return done


def _part_by_part(trainer: Trainer) -> Done:
    remaining = trainer.remaining
    rollout = trainer.collector.collect(remaining)
    steps, episodes = of_all(trainer, rollout)
    if not steps:  # only resets (a vector env, one step): nothing to learn from
        return Done(0, episodes, {})
    for name, message in (*trainer.watch.look(rollout, trainer.step), *_absent(trainer, episodes)):
        trainer.advise(name, message)
    for callback in trainer.callbacks:
        callback.on_rollout(trainer, rollout)
    trainer.rollout = rollout
    trainer.errands.append(partial(_tell_advice, trainer, episodes, trainer.step + steps))
    with trainer.timer.phase("learn"), own_modes(gradients=True):
        metrics = _learn(trainer, rollout, remaining)
    trainer.rollout = None
    return Done(steps, episodes, metrics)


def _absent(trainer: Trainer, episodes: Sequence[Episode]) -> Iterator[tuple[str, str]]:
    """Numbers of `log_info` that none of these episodes has: (a name for the advice, the advice)."""
    for key, given in trainer.collector.tracker.missing.items():
        if episodes and not any(key in episode.info for episode in episodes):
            known = f"it has {', '.join(given)}" if given else "it is empty"
            message = f"log_info: no info at the end of an episode has {key!r}; {known}{did_you_mean(key, given)}"
            yield f"log_info {key}", message


def _tell_advice(trainer: Trainer, episodes: Sequence[Episode], step: int) -> None:
    trainer.advice.add_episodes(rows_of(of_first_envs(episodes)), step)


def _learn(trainer: Trainer, rollout: Rollout, remaining: float) -> dict[str, float]:
    learner = trainer.learner
    learner.update, learner.meanwhile = trainer.update, trainer.run_errands
    learner.set_rates(remaining)
    metrics = trainer.algorithm.update(learner, rollout)
    trainer.run_errands()
    metrics["learning_rate"] = learner.learning_rate
    learner.adapt_rate(metrics["kl"])
    own = {name: float(x) for name, x in learner.absorb(rollout).items()}
    return metrics | learner.shares.metrics(own)
