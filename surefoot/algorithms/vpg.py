"""VPG, the vanilla policy gradient: REINFORCE with a learned baseline.

    ∇J(θ) = E[ ∇ log π_θ(a_t|s_t) · Â_t ],    L_V = E[ (V(s_t) − target_t)² ]

From REINFORCE: a critic V is fitted to the returns and subtracted from them, which leaves the expected gradient as it
is and takes most of its variance away; episodes still open at the end of a rollout are bootstrapped with V. With V ≡ 0
and λ = 1 on whole episodes it is REINFORCE. The advantage is a constant: it sends no gradient into the critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import AdvantageConfig, Base, JointLossConfig, estimate, joint_loss, joint_spec
from surefoot.algorithms.reinforce import ONE_PASS
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch, LossSpec, Metrics, Outputs, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig):
    """Settings of VPG."""

    gae_lambda: float = 1.0
    value_coef: float = 1.0
    learning_rate: float = 1e-3


class VPG(Base[Config]):
    """−E[log π(a|s) · Â] + c_v·L_V − c_e·H."""

    config_type = Config

    def estimate(self, rollout: Rollout) -> Batch:
        return estimate(rollout, self.config)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        surrogate = batch.mean(outputs.log_prob * batch.advantage)
        return joint_loss(surrogate, outputs, batch, self.config)

    def spec(self, remaining: float) -> LossSpec:
        return joint_spec("log_prob", self.config)

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        minibatch, spec = self.config.normalize_advantage == "minibatch", self.spec(rollout.remaining)
        return learner.epochs(self.loss, self.estimate, rollout, ONE_PASS, spec=spec, normalize=minibatch)
