"""PPO-penalty: TRPO's constraint as a penalty, with plain gradient steps.

    L(θ) = E[ r_t(θ) · Â_t − β · KL(π_old(·|s_t) ‖ π_θ(·|s_t)) ]

    after each update, with d the mean KL over the whole rollout:   β ← 2β if d ≥ 1.5δ,   β ← β/2 if d ≤ δ/1.5

From TRPO: no Fisher matrix and no line search, but epochs of minibatch gradient steps on a penalised objective. The
penalty β adapts until an update has a KL of about δ (Schulman 2017). The KL is exact, from the
stored parameters of the old distribution; β is saved with the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import AdvantageConfig, Base, JointLossConfig, Normalize, estimate, joint_loss
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.engine.losses import RATIO, Loss
from surefoot.errors import UsageError
from surefoot.math.operations import OPERATIONS
from surefoot.ranges import between
from surefoot.settings import setting

if TYPE_CHECKING:
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdvantageConfig, JointLossConfig, AdaptiveRateConfig, EpochConfig):
    """Settings of PPO-penalty."""

    target_kl: float = setting(
        0.01, "δ: target KL per update, which β is adapted to.", above=0.0, search=between(0.003, 0.05, log=True)
    )
    kl_coef: float = setting(1.0, "Initial β.", above=0.0)
    kl_coef_min: float = setting(1e-4, "Lower limit of β.", above=0.0)
    kl_coef_max: float = setting(1e4, "Upper limit of β.", above=0.0)
    normalize_advantage: Normalize = "minibatch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kl_coef_min <= self.kl_coef <= self.kl_coef_max:
            raise UsageError(f"kl_coef={self.kl_coef} is outside [{self.kl_coef_min}, {self.kl_coef_max}]")


def adapted_kl_coef(beta: float, kl: float, target: float) -> float:
    """2β if d ≥ 1.5δ, β/2 if d ≤ δ/1.5, else β."""
    if kl >= 1.5 * target:
        return 2.0 * beta
    return beta / 2.0 if kl <= target / 1.5 else beta


class PPOPenalty(Base[Config]):
    """−E[r·Â − β·KL] + c_v·L_V − c_e·H."""

    config_type = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.state = {"kl_coef": config.kl_coef}

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return estimate(rollout, self.config.at(rollout.remaining), operations)

    def terms(self, remaining: float) -> Loss:
        return joint_loss(RATIO, self.config.at(remaining), kl_coef=self.state["kl_coef"], metrics=("approx_kl",))

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        loss, minibatch = self.current_loss(rollout.remaining), self.config.normalize_advantage == "minibatch"
        used = self.state["kl_coef"]
        config = self.config.at(rollout.remaining)
        metrics = learner.epochs(loss, self.estimate, rollout, config, normalize=minibatch)
        self.state["kl_coef"] = self.next_kl_coef(metrics["kl"], config.target_kl)
        return {**metrics, "kl_coef": used}

    def next_kl_coef(self, kl: float, target: float) -> float:
        """β for the next update, from the exact KL of this one."""
        beta = adapted_kl_coef(self.state["kl_coef"], kl, target)
        return min(max(beta, self.config.kl_coef_min), self.config.kl_coef_max)
