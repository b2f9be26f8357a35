"""REINFORCE: follow the gradient of the log-probability, weighted by the return that followed.

    ∇J(θ) = E[ Σ_t ∇ log π_θ(a_t|s_t) · R_t ],    R_t = Σ_{k ≥ t} γ^{k−t} r_k

The first algorithm: no critic. Every action is credited with the discounted reward from then on, so whole episodes are
needed. The factor γ^t of the exact gradient is omitted, as is usual (Nota & Thomas 2020), so late states count in full.
The loss is a mean over steps rather than a sum, which makes no difference to Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import GAMMAS, Base, EntropyConfig, Normalize, flatten
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.engine.losses import LOG_PROB, Loss
from surefoot.math.operations import OPERATIONS
from surefoot.ranges import among
from surefoot.settings import setting

if TYPE_CHECKING:
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout

ONE_PASS = EpochConfig(num_epochs=1, num_minibatches=1)


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdaptiveRateConfig, EntropyConfig):
    """Settings of REINFORCE."""

    episodes_per_env: int = setting(1, "Whole episodes per env and update.", low=1)
    rollout_length: int = setting(
        256, "T: the horizon if reset_each_rollout is set; otherwise episodes run to their own end.", low=1
    )
    gamma: float = setting(0.99, "γ: discount.", low=0.0, high=1.0, search=GAMMAS)
    normalize_advantage: Normalize = setting(
        "none", "Standardise returns (population std) over the rollout.", search=among("none", "batch")
    )
    learning_rate: float = 1e-3


class Reinforce(Base[Config]):
    """−E[log π(a|s) · R]."""

    config_type = Config
    uses_critic = False

    @property
    def episodes_per_env(self) -> int | None:
        """Whole episodes, unless envs are reset for each rollout, which then has a fixed horizon."""
        return None if self.config.reset_each_rollout else self.config.episodes_per_env

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        returns = operations.reward_to_go(rollout.reward, rollout.done, self.config.at(rollout.remaining).gamma)
        return flatten(rollout, returns, returns, self.config.normalize_advantage != "none", operations)

    def terms(self, remaining: float) -> Loss:
        return Loss(LOG_PROB, entropy_coef=self.config.at(remaining).entropy_coef)

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        return learner.epochs(self.current_loss(rollout.remaining), self.estimate, rollout, ONE_PASS)
