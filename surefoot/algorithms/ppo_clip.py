"""PPO-clip: a surrogate that gains nothing outside the trust region.

    L(θ) = E[ min( r_t(θ)·Â_t, clip(r_t(θ), 1−ε, 1+ε)·Â_t ) ]

From PPO-penalty: instead of penalising the KL, clip the ratio at 1±ε on the side where moving further would pay. A
sample whose ratio is beyond the clip has no gradient. That removes the incentive to leave the region, not the
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
    estimate,
    joint_loss,
)
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.engine.losses import Loss, Surrogate, ratio_of
from surefoot.math.operations import OPERATIONS
from surefoot.ranges import between
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Outputs, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig, EpochConfig):
    """Settings of PPO-clip."""

    clip_ratio: float = setting(0.2, "ε: ratios beyond 1±ε gain nothing more.", above=0.0, search=between(0.1, 0.4))
    clip_ratio_schedule: Schedule = setting("constant", "Linear: ε falls to zero over total_steps.")
    normalize_advantage: Normalize = "minibatch"


def clipped_gain(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    """min(r·Â, clip(r, 1−ε, 1+ε)·Â)."""
    ratio = ratio_of(outputs, batch)
    return (ratio * batch.advantage).minimum(ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * batch.advantage)


CLIP = Surrogate(
    clipped_gain, "clip", clipped=lambda ratio, epsilon: ratio != ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
)


class PPOClip(Base[Config]):
    """−E[min(r·Â, clip(r)·Â)] + c_v·L_V − c_e·H."""

    config_type = Config

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)
        return joint_loss(CLIP, config, config.clip_ratio, metrics=("approx_kl", "clip_fraction"))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        config = self.config.at(rollout.remaining)
        return learner.epochs(loss, self.estimate, rollout, config, normalize=minibatch)
