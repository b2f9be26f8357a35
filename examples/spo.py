"""SPO, simple policy optimization: a parabola holds the ratio where PPO clips it (Xie et al. 2024).

    L(θ) = E[ r_t(θ)·Â_t − |Â_t|·(r_t(θ) − 1)² / (2ε) ]

From PPO-clip: beyond 1±ε a clipped sample sends no gradient at all, so nothing brings it back. Here each sample's term
has its maximum exactly at r = 1 + ε·sign(Â), and beyond it the gradient points back.

    surefoot train CartPole-v1 --algo examples/spo.py:SPO
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import AdvantageConfig, Base, JointLossConfig, Normalize, estimate, joint_loss
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.engine.losses import Loss, Surrogate, ratio_of
from surefoot.math.operations import OPERATIONS
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Outputs, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig, EpochConfig):
    """Settings of SPO."""

    clip_ratio: float = setting(0.2, "ε: how far from 1 the ratio of each sample is pulled.", above=0.0)
    normalize_advantage: Normalize = "minibatch"


def held_gain(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    """r·Â − |Â|·(r − 1)² / (2ε)."""
    ratio = ratio_of(outputs, batch)
    return ratio * batch.advantage - batch.advantage.abs() * (ratio - 1.0) ** 2 / (2.0 * epsilon)


# "spo" is the same formula in C++ (surefoot/kernels/src/surrogates.hpp). Without it, PyTorch learns.
HELD = Surrogate(held_gain, "spo", clipped=lambda ratio, epsilon: (ratio - 1.0).abs() > epsilon)


class SPO(Base[Config]):
    """−E[r·Â − |Â|·(r − 1)² / (2ε)] + c_v·L_V − c_e·H."""

    config_type = Config
    preset_of = "ppo"

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)  # resolves schedules to plain numbers
        return joint_loss(HELD, config, config.clip_ratio, metrics=("approx_kl", "clip_fraction"))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        config = self.config.at(rollout.remaining)
        return learner.epochs(loss, self.estimate, rollout, config, normalize=minibatch)
