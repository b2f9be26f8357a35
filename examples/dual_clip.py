"""Dual-clip PPO: a floor under the objective of bad actions (Ye et al. 2020).

    L(θ) = E[ max( min(r_t·Â_t, clip(r_t, 1−ε, 1+ε)·Â_t), c·Â_t ) ]  where Â_t < 0,  PPO's objective elsewhere

From PPO-clip: a bad action whose ratio has become large has an objective without a floor, and a gradient that grows
with the ratio. Below c·Â (c > 1) there is nothing more to lose, and the gradient is 0.

    surefoot train CartPole-v1 --algo examples/dual_clip.py:DualClip --dual-clip 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms.parts import joint_loss
from surefoot.algorithms.ppo_clip import Config as PPOConfig
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.engine.losses import Loss, Surrogate, ratio_of
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.types import Batch, Outputs


@dataclass(frozen=True, kw_only=True)
class Config(PPOConfig):
    """Settings of dual-clip PPO."""

    dual_clip: float = setting(3.0, "c: a bad action costs at most c times its advantage.", above=1.0)


def dual_clip_gain(ratio: Tensor, advantage: Tensor, clip_ratio: float, dual_clip: float) -> Tensor:
    gain = (ratio * advantage).minimum(ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * advantage)
    return gain.maximum(dual_clip * advantage).where(advantage < 0.0, gain)


def gain_of(outputs: Outputs, batch: Batch, clip_ratio: float, dual_clip: float) -> Tensor:
    return dual_clip_gain(ratio_of(outputs, batch), batch.advantage, clip_ratio, dual_clip)


DUAL = Surrogate(gain_of, clipped=lambda ratio, clip_ratio, dual_clip: (ratio - 1.0).abs() > clip_ratio)


class DualClip(PPOClip):
    """−E[max(min(r·Â, clip(r)·Â), c·Â) where Â < 0] + c_v·L_V − c_e·H."""

    config_type = Config
    config: Config
    preset_of = "ppo"

    def terms(self, remaining: float) -> Loss:
        config = self.config.at(remaining)  # resolves schedules to plain numbers
        metrics = ("approx_kl", "clip_fraction")
        return joint_loss(DUAL, config, config.clip_ratio, config.dual_clip, metrics=metrics)
