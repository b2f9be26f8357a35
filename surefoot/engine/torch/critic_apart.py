"""A critic with passes of its own: first the actor learns from a rollout, then the critic (DNA, Aitchison 2022).

    K epochs of −E[surrogate] − c_e·H for the actor,    then value_epochs of L_V for the critic

Each has its own optimizer clock and its own gradient norm. The distillation of DNA is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from surefoot.engine.losses import Loss
from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.engine.config import EpochConfig, Minibatches
    from surefoot.engine.losses import LossFunction
    from surefoot.policies.actor_critic import ActorCritic


class CriticPasses(NamedTuple):
    """How long the critic is fitted; a `ValueFit`."""

    value_epochs: int
    value_minibatches: Minibatches


def critic_passes(config: EpochConfig) -> CriticPasses:
    assert config.value_epochs is not None
    return CriticPasses(config.value_epochs, config.num_minibatches)


def divided(loss: LossFunction) -> tuple[Loss, Loss]:
    """(the actor's loss, the critic's)."""
    if not isinstance(loss, Loss) or loss.value_coef is None:
        raise UsageError(
            "value_epochs needs a loss that is declared in `terms` with a critic's loss in it; this algorithm computes "
            "its own. Drop value_epochs"
        )
    alone = Loss(None, value_coef=1.0, value_loss=loss.value_loss, value_clip=loss.value_clip)
    return replace(loss, value_coef=None), alone


def require_apart(policy: ActorCritic) -> None:
    """UsageError if actor and critic share what the critic's own passes would change."""
    if not policy.has_critic:
        raise UsageError("value_epochs has no effect without a critic; drop it")
    if policy.shared or policy.memory is not None:
        what = "a memory" if policy.memory is not None else "a trunk"
        advice = "use memory=none" if policy.memory is not None else "set --no-shared-trunk"
        raise UsageError(
            f"value_epochs trains the critic apart from the actor, but here they share {what}; {advice}, or drop it"
        )
