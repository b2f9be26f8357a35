"""VPG, the vanilla policy gradient: REINFORCE with a learned baseline.

    ∇J(θ) = E[ ∇ log π_θ(a_t|s_t) · Â_t ],    L_V = E[ (V(s_t) − target_t)² ]

From REINFORCE: a critic V is fitted to the returns and subtracted from them. This leaves the expected gradient
unchanged and removes most of its variance. Episodes still open at the end of a rollout are bootstrapped with V. With
V ≡ 0 and λ = 1 on whole episodes it is REINFORCE. The advantage is a constant: no gradient flows through it into the
critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import AdvantageConfig, Base, JointLossConfig, estimate, joint_loss
from surefoot.algorithms.reinforce import ONE_PASS
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig
from surefoot.engine.losses import LOG_PROB, Loss
from surefoot.math.operations import OPERATIONS

if TYPE_CHECKING:
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig):
    """Settings of VPG."""

    gae_lambda: float = 1.0
    value_coef: float = 1.0
    learning_rate: float = 1e-3


class VPG(Base[Config]):
    """−E[log π(a|s) · Â] + c_v·L_V − c_e·H."""

    config_type = Config
    decides_nothing = True

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        return joint_loss(LOG_PROB, self.config.at(remaining))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        return learner.epochs(loss, self.estimate, rollout, ONE_PASS, normalize=minibatch)
