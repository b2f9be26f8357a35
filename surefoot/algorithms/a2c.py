"""A2C, the synchronous advantage actor-critic: VPG that updates every few steps.

    L(θ) = −E[ log π_θ(a_t|s_t) · Â_t ] + c_v · E[ (V(s_t) − target_t)² ] − c_e · E[ H(π_θ(·|s_t)) ]

From VPG: rollouts of a few steps from many envs, so almost every advantage relies on the critic's bootstrap; RMSprop
and gradient clipping keep the frequent small updates stable (Mnih 2016, with c_e > 0). It equals PPO with
one epoch, one minibatch, no advantage normalisation and the same optimizer (Huang 2022).
"""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.algorithms import vpg
from surefoot.engine.config import Optimizer


@dataclass(frozen=True, kw_only=True)
class Config(vpg.Config):
    """Settings of A2C."""

    rollout_length: int = 5
    gae_lambda: float = 1.0
    value_coef: float = 0.5
    learning_rate: float = 7e-4
    optimizer: Optimizer = "rmsprop"


class A2C(vpg.VPG):
    """VPG's loss, −E[log π(a|s) · Â] + c_v·L_V − c_e·H, every few steps."""

    config_type = Config
    decides_nothing = True
