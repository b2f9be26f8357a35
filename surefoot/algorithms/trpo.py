"""TRPO, trust-region policy optimisation: the natural gradient with a checked step.

    maximise L(θ) = E[ r_t(θ) · Â_t ]    subject to    E[ KL(π_old(·|s) ‖ π_θ(·|s)) ] ≤ δ

From NPG: the quadratic model only predicts the KL, so the step is tried and shortened (×0.8, ×0.64, …) until the
actual KL is within δ and the surrogate has improved. If no length works, the parameters stay unchanged (Schulman 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms import npg
from surefoot.algorithms.parts import Base, critic_loss, estimate
from surefoot.engine.losses import RATIO, Loss
from surefoot.math.operations import OPERATIONS
from surefoot.settings import setting

if TYPE_CHECKING:
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(npg.Config):
    """Settings of TRPO."""

    max_kl: float = setting(0.01, "δ: limit on the mean KL(old‖new) of a step.", above=0.0)
    backtrack_factor: float = setting(
        0.8, "The line search shortens the step by this factor at each try.", above=0.0, high=0.999
    )
    backtrack_tries: int = setting(10, "Tries of the line search before the step is abandoned.", low=1)


class TRPO(Base[Config]):
    """One natural step for the actor, backtracked into the trust region; several gradient passes for the critic."""

    config_type = Config
    train_actor = False

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        return Loss(RATIO, entropy_coef=self.config.at(remaining).entropy_coef)

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        from surefoot.math.trust_region import backtrack  # not above: reading a config must not import torch

        config = self.config.at(rollout.remaining)
        batch, loss = self.estimate(rollout, learner.operations), self.terms(rollout.remaining)
        with learner.all_or_nothing():
            step, predicted = learner.natural_step(loss, batch, config)
            once = learner.policy_metrics(batch) | {"predicted_gain": predicted}
            actor = learner.flat.actor
            start, before = actor.clone(), learner.measure(loss, batch)

            def accept(fraction: float) -> bool:
                actor.copy_(start).add_(step, alpha=fraction)
                kl, gain = learner.mean_kl(batch), learner.measure(loss, batch) - before
                return kl <= config.max_kl and gain > 0.0

            fraction = backtrack(accept, config.backtrack_factor, config.backtrack_tries)
            if fraction is None:
                actor.copy_(start)
            gain = learner.measure(loss, batch) - before
            history = learner.fit_value(critic_loss(config), batch, config)
            metrics = learner.summarize(batch, history, once)
        return {**metrics, "surrogate_gain": gain, "step_fraction": fraction or 0.0}
