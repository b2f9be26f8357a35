"""PPO-clip: a surrogate that gains nothing outside the trust region.

    L(θ) = E[ min( r_t(θ)·Â_t, clip(r_t(θ), 1−ε, 1+ε)·Â_t ) ]

From PPO-penalty: instead of penalising the KL, clip the ratio at 1±ε on the side where moving further would pay. A
sample whose ratio is beyond the clip has no gradient. That removes the incentive to leave the region, not the
possibility: other samples move shared weights, so the KL is logged (mean, 95th percentile, maximum), and `stop_kl`
can end an update early.

    surrogate = spo:   L(θ) = E[ r_t(θ)·Â_t − |Â_t|·(r_t(θ) − 1)² / (2ε) ]

SPO (Xie et al. 2024) holds the ratio with a parabola instead. Each sample's term has its maximum exactly at
r = 1 + ε·sign(Â), and beyond it the gradient points back, where a clipped sample has none.

    mean_noise = α:            r_t(θ) = N(a_t; μ_θ(s_t) + z_t, σ_θ) / π_old(a_t|s_t),  z_t ~ U(−α, α)   (RPO)
    outer_learning_rate = σ:   θ ← θ_old + σ·(θ − θ_old)  after the last epoch   (outer-PPO)
    value_epochs = n:          K epochs without L_V, then n of L_V alone, for the critic   (DNA without distillation)
    optimizer = adam-rel:      t of m/(1−β₁ᵗ) and v/(1−β₂ᵗ) counted from the start of each update
    critic_obs, layer_norm:    V(s) sees more of s than π does; hidden layers are normalised

All of these are off by default; docs/improvements.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from surefoot import schedules
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
from surefoot.errors import UsageError
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

    surrogate: Literal["clip", "spo"] = setting(
        "clip", "Clip the ratio at 1±ε, or pull it back from there with a parabola (SPO)."
    )
    clip_ratio: float = setting(0.2, "ε: ratios beyond 1±ε gain nothing more.", above=0.0, search=between(0.1, 0.4))
    clip_ratio_schedule: Schedule = setting("constant", "Linear: ε falls to zero over total_steps.")
    normalize_advantage: Normalize = "minibatch"

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.clip_ratio
        points = epsilon.points if isinstance(epsilon, schedules.Schedule) else ()
        if self.surrogate == "spo" and any(value <= 0.0 for at, value in points if at < 1.0):
            raise UsageError(f"surrogate=spo divides by clip_ratio, which {epsilon} takes to 0 before the end")


def clipped_gain(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    """min(r·Â, clip(r, 1−ε, 1+ε)·Â)."""
    ratio = ratio_of(outputs, batch)
    return (ratio * batch.advantage).minimum(ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * batch.advantage)


def held_gain(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    """r·Â − |Â|·(r − 1)² / (2ε)."""
    ratio = ratio_of(outputs, batch)
    return ratio * batch.advantage - batch.advantage.abs() * (ratio - 1.0) ** 2 / (2.0 * epsilon)


SURROGATES = {
    "clip": Surrogate(
        clipped_gain, "clip", clipped=lambda ratio, epsilon: ratio != ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
    ),
    "spo": Surrogate(held_gain, "spo", clipped=lambda ratio, epsilon: (ratio - 1.0).abs() > epsilon),
}


class PPOClip(Base[Config]):
    """−E[min(r·Â, clip(r)·Â)] + c_v·L_V − c_e·H; with SPO, −E[r·Â − |Â|·(r − 1)²/(2ε)] + …"""

    config_type = Config
    decides_nothing = True

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)
        surrogate = SURROGATES[config.surrogate]
        return joint_loss(surrogate, config, config.clip_ratio, metrics=("approx_kl", "clip_fraction"))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        config = self.config.at(rollout.remaining)
        return learner.epochs(loss, self.estimate, rollout, config, normalize=minibatch)
