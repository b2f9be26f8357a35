"""NPG, the natural policy gradient: steepest ascent per unit of KL rather than per unit of parameters.

    θ ← θ + √(2δ / xᵀFx) · x,    F x = ∇L(θ),    F = ∇² E[ KL(π_old(·|s) ‖ π_θ(·|s)) ] at θ = θ_old

From A2C: the step no longer depends on how the policy is parametrised. Conjugate gradient solves for x using
only Fisher-vector products (Kakade 2001). The step is as long as the quadratic model of the KL allows for δ (slightly
shorter, because F includes the damping). The critic is fitted separately by gradient descent, in several passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import (
    AdvantageConfig,
    Base,
    CriticConfig,
    EntropyConfig,
    Normalize,
    critic_loss,
    estimate,
)
from surefoot.engine.config import CollectConfig, GradientConfig, Minibatches
from surefoot.engine.losses import RATIO, Loss
from surefoot.errors import UsageError
from surefoot.math.operations import OPERATIONS
from surefoot.ranges import between
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, EntropyConfig, CriticConfig, GradientConfig):
    """Settings of NPG."""

    max_kl: float = setting(
        0.01,
        "δ: limit on the KL(old‖new) of a step, as predicted by the quadratic model.",
        above=0.0,
        search=between(0.002, 0.1, log=True),
    )
    cg_iterations: int = setting(10, "Conjugate-gradient iterations.", low=1)
    cg_damping: float = setting(0.1, "Added to the diagonal of the Fisher matrix.", low=0.0)
    fisher_fraction: float = setting(
        1.0, "Fraction of the samples used to estimate the Fisher matrix.", above=0.0, high=1.0
    )
    value_epochs: int = setting(10, "Passes over each rollout to fit the critic.", low=1, search=between(3, 20))
    value_minibatches: Minibatches = setting(
        "auto",
        "Minibatches per pass to fit the critic; auto: minibatches of 64 samples or slightly more, at most 32 (4 with "
        "a memory).",
        low=1,
    )
    learning_rate: float = setting(
        1e-3,
        "α: learning rate of the critic; max_kl sets the actor's step.",
        above=0.0,
        search=between(1e-4, 5e-3, log=True),
    )
    normalize_advantage: Normalize = "batch"
    rollout_length: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_advantage == "minibatch":
            raise UsageError("the natural step is taken on the whole rollout; use normalize_advantage=batch")


class NPG(Base[Config]):
    """One natural step for the actor, several gradient passes for the critic."""

    config_type = Config
    train_actor = False

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        return Loss(RATIO, entropy_coef=self.config.at(remaining).entropy_coef)

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        config = self.config.at(rollout.remaining)
        batch, loss = self.estimate(rollout, learner.operations), self.terms(rollout.remaining)
        with learner.all_or_nothing():
            learner.begin_look(loss, batch, config.value_epochs)
            step, predicted = learner.natural_step(loss, batch, config)
            once = learner.policy_metrics(batch) | {"predicted_gain": predicted}
            moved = self.move(learner, loss, batch, step)
            history = learner.fit_value(critic_loss(config), batch, config)
            return learner.summarize(batch, history, once) | moved

    def move(self, learner: Learner, loss: Loss, batch: Batch, step: Tensor) -> dict[str, float]:
        """Take the step; returns what is worth a metric."""
        learner.flat.actor.add_(step)
        return {}
