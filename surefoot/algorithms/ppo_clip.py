"""PPO-clip: a surrogate that has nothing to gain outside the trust region.

    L(θ) = E[ min( r_t(θ)·Â_t, clip(r_t(θ), 1−ε, 1+ε)·Â_t ) ]

From PPO-penalty: instead of a price on the KL, the ratio is cut at 1±ε on the side where moving further would pay. A
sample whose ratio is beyond the cut sends no gradient. That removes the incentive to leave the region, not the
possibility: other samples move shared weights, so the KL is logged (mean, 95th percentile, maximum), and `stop_kl`
can end an update early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import (
    AdvantageConfig,
    Base,
    JointLossConfig,
    Normalize,
    Schedule,
    approx_kl,
    estimate,
    joint_loss,
    joint_spec,
    ratio_of,
    scheduled,
)
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch, LossSpec, Metrics, Outputs, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig, EpochConfig):
    """Settings of PPO-clip."""

    clip_ratio: float = setting(0.2, "ε: beyond 1±ε a ratio earns nothing more.", above=0.0)
    clip_ratio_schedule: Schedule = setting("constant", "Linear: ε falls to zero over total_steps.")
    normalize_advantage: Normalize = "minibatch"


class PPOClip(Base[Config]):
    """−E[min(r·Â, clip(r)·Â)] + c_v·L_V − c_e·H."""

    config_type = Config

    def estimate(self, rollout: Rollout) -> Batch:
        return estimate(rollout, self.config)

    def epsilon(self, remaining: float) -> float:
        return scheduled(self.config.clip_ratio, self.config.clip_ratio_schedule, remaining)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        epsilon = self.epsilon(batch.remaining)
        ratio = ratio_of(outputs, batch)
        clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
        surrogate = batch.mean((ratio * batch.advantage).minimum(clipped * batch.advantage))
        loss, metrics = joint_loss(surrogate, outputs, batch, self.config)
        return loss, {
            **metrics,
            "approx_kl": approx_kl(outputs, batch, ratio),
            "clip_fraction": batch.mean((ratio != clipped).float()),
        }

    def spec(self, remaining: float) -> LossSpec:
        told = ("approx_kl", "clip_fraction")
        return joint_spec("clip", self.config, told, clip_ratio=self.epsilon(remaining))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        minibatch, spec = self.config.normalize_advantage == "minibatch", self.spec(rollout.remaining)
        return learner.epochs(self.loss, self.estimate, rollout, self.config, spec=spec, normalize=minibatch)
