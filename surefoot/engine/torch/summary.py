"""What an update was: its metrics, read on the host once, and whether it may stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from surefoot.engine.shares import averaged
from surefoot.engine.torch.instruments import with_instruments
from surefoot.engine.torch.verdict import checked

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch, Metrics

    Names: TypeAlias = tuple[list[str], list[str]]  # of metrics, and of instruments


def unread(learner: Learner, batch: Batch, history: list[Metrics], once: Metrics) -> tuple[Names, Tensor]:
    """The metrics of an update as one tensor `[M]`. `history`: of its minibatches; `once`: of the whole.

    A population's learner gives a number for each agent instead of each number: then it is `[M, agents]`.
    """
    kl, looked = learner.look_over(batch)
    means = averaged(history)
    last = {**learner.spread_of_kl(kl, batch.weight), "parameters_finite": learner.flat.vector.isfinite().all(-1)}
    if learner.policy.has_critic and "explained_variance" not in once:
        once["explained_variance"] = learner.explained_variance(batch)
    last.update(once)
    numbers = torch.stack([x.float() for x in (*means.values(), *last.values(), *looked.values())])
    return ([*means, *last], list(looked)), numbers


def understood(learner: Learner, names: Names, numbers: list[float]) -> dict[str, float]:
    """The metrics from what was read of them; an error if a number is not finite, so that the update is refused."""
    own, looked = names
    found = learner.shares.metrics(dict(zip(own, numbers, strict=False)))
    seen = learner.shares.metrics(dict(zip(looked, numbers[len(own) :], strict=True)))
    return with_instruments(checked(found, learner.learning_rate, learner.ratio_tolerance), seen)
