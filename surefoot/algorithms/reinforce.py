"""REINFORCE: follow the gradient of log-probability, weighted by the return that followed.

    ∇J(θ) = E[ Σ_t ∇ log π_θ(a_t|s_t) · R_t ],    R_t = Σ_{k ≥ t} γ^{k−t} r_k

First rung: no critic. Every action is credited with the discounted reward from then on, so whole episodes are needed.
The factor γ^t of the exact gradient is left out, as everybody does (Nota & Thomas 2020): late states count in full. The
loss is a mean over steps rather than a sum; Adam does not see the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import Base, EntropyConfig, Normalize, flatten
from surefoot.engine.config import AdaptiveRateConfig, CollectConfig, EpochConfig
from surefoot.math.returns import reward_to_go
from surefoot.settings import setting
from surefoot.types import LossSpec

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch, Metrics, Outputs, Rollout

ONE_PASS = EpochConfig(num_epochs=1, num_minibatches=1)


@dataclass(frozen=True, kw_only=True)
class Config(CollectConfig, AdaptiveRateConfig, EntropyConfig):
    """Settings of REINFORCE."""

    episodes_per_env: int = setting(1, "Whole episodes of each env per update.", low=1)
    rollout_length: int = setting(
        256, "T: the horizon if reset_each_rollout is set; otherwise episodes run to their own end.", low=1
    )
    gamma: float = setting(0.99, "γ: discount.", low=0.0, high=1.0)
    normalize_advantage: Normalize = setting(
        "none", "Subtract the mean and divide by the (population) std of the returns in the rollout."
    )
    learning_rate: float = 1e-3


class Reinforce(Base[Config]):
    """−E[log π(a|s) · R]."""

    config_type = Config
    uses_critic = False

    @property
    def episodes_per_env(self) -> int | None:
        """Whole episodes, unless each rollout is an episode of its own horizon."""
        return None if self.config.reset_each_rollout else self.config.episodes_per_env

    def estimate(self, rollout: Rollout) -> Batch:
        scan = None if rollout.compiled is None else rollout.compiled.reverse_scan
        returns = reward_to_go(rollout.reward, rollout.done, self.config.gamma, scan)
        return flatten(rollout, returns, returns, self.config.normalize_advantage != "none")

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Metrics]:
        policy_loss = -batch.mean(outputs.log_prob * batch.advantage)
        entropy = batch.mean(outputs.distribution.entropy())
        loss = policy_loss - self.config.entropy_coef * entropy
        return loss, {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}

    def spec(self, remaining: float) -> LossSpec:
        return LossSpec("log_prob", entropy_coef=self.config.entropy_coef)

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]:
        spec = self.spec(rollout.remaining)
        return learner.epochs(self.loss, self.estimate, rollout, ONE_PASS, spec=spec)
