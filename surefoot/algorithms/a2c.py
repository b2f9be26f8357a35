"""A2C, the synchronous advantage actor-critic: VPG that updates every few steps.

    L(θ) = −E[ log π_θ(a_t|s_t) · Â_t ] + c_v · E[ (V(s_t) − target_t)² ] − c_e · E[ H(π_θ(·|s_t)) ]

From VPG: rollouts of a few steps from many envs, so almost every advantage relies on the critic's bootstrap; RMSprop
and gradient clipping keep the frequent small updates stable (Mnih 2016, with c_e > 0). It equals PPO with
one epoch, one minibatch, no advantage normalisation and the same optimizer (Huang 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
    """Settings of A2C."""

    rollout_length: int = 5
    gae_lambda: float = 1.0
    learning_rate: float = 7e-4
    optimizer: Literal["adam", "rmsprop"] = "rmsprop"


class A2C(Base[Config]):
    """−E[log π(a|s) · Â] + c_v·L_V − c_e·H, every few steps."""

    config_type = Config

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        return joint_loss(LOG_PROB, self.config.at(remaining))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        return learner.epochs(loss, self.estimate, rollout, ONE_PASS, normalize=minibatch)
