"""Five PPOs with one bug each, for chapter 5. They train and log like any other; `examine` finds what ails them.

Whoever wants to find the bugs by experiment should not read on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import flatten, joint_loss
from surefoot.algorithms.ppo_clip import Config as PPOConfig
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.engine.losses import Loss, Surrogate, ratio_of
from surefoot.math.operations import OPERATIONS
from surefoot.math.returns import gae, td_error

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Outputs, Rollout


class PatientA(PPOClip):
    """PPO, with a bug."""

    preset_of = "ppo"

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        return super().estimate(replace(rollout, terminated=rollout.done), operations)


class PatientB(PPOClip):
    """PPO, with a bug."""

    preset_of = "ppo"

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)
        return joint_loss(Surrogate(_b), config, config.clip_ratio)


def _b(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    ratio = ratio_of(outputs, batch)
    return (ratio * batch.advantage).maximum(ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * batch.advantage)


class PatientC(PPOClip):
    """PPO, with a bug."""

    preset_of = "ppo"

    def estimate(self, rollout: Rollout, operations: Operations = OPERATIONS) -> Batch:
        config = self.config.at(rollout.remaining)
        delta = td_error(rollout.reward, rollout.value, rollout.next_value, rollout.terminated, config.gamma)
        advantage = gae(delta, rollout.done & False, config.gamma, config.gae_lambda)
        return flatten(rollout, advantage, rollout.value + advantage, False, operations)


class PatientD(PPOClip):
    """PPO, with a bug."""

    preset_of = "ppo"

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)
        return joint_loss(Surrogate(_d), config, config.clip_ratio)


def _d(outputs: Outputs, batch: Batch, epsilon: float) -> Tensor:
    ratio = (outputs.log_prob - outputs.log_prob.detach()).exp()
    return (ratio * batch.advantage).minimum(ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * batch.advantage)


@dataclass(frozen=True, kw_only=True)
class ConfigE(PPOConfig):
    """Settings of patient E."""

    entropy_coef: float = 0.05


class PatientE(PPOClip):
    """PPO, with a bug."""

    config_type = ConfigE
    preset_of = "ppo"

    def terms(self, remaining: float) -> Loss:
        return replace(super().terms(remaining), entropy_coef=-self.config.at(remaining).entropy_coef)


PATIENTS = {"A": PatientA, "B": PatientB, "C": PatientC, "D": PatientD, "E": PatientE}
