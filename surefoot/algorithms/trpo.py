"""TRPO, trust-region policy optimisation: the natural gradient with a checked step.

    maximise L(θ) = E[ r_t(θ) · Â_t ]    subject to    E[ KL(π_old(·|s) ‖ π_θ(·|s)) ] ≤ δ

From NPG: the quadratic model only predicts the KL, so the step is tried and shortened (×0.8, ×0.64, …) until the
actual KL is within δ and the surrogate has improved. If no length works, the parameters stay unchanged (Schulman 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.algorithms import npg
from surefoot.ranges import between
from surefoot.settings import setting

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.losses import Loss
    from surefoot.engine.torch.learner import Learner
    from surefoot.types import Batch


@dataclass(frozen=True, kw_only=True)
class Config(npg.Config):
    """Settings of TRPO."""

    max_kl: float = setting(
        0.01, "δ: limit on the mean KL(old‖new) of a step.", above=0.0, search=between(0.002, 0.1, log=True)
    )
    backtrack_factor: float = setting(
        0.8, "The line search shortens the step by this factor at each try.", above=0.0, high=0.999
    )
    backtrack_tries: int = setting(10, "Tries of the line search before the step is abandoned.", low=1)


class TRPO(npg.NPG):
    """One natural step for the actor, backtracked into the trust region; several gradient passes for the critic."""

    config_type = Config
    config: Config

    def move(self, learner: Learner, loss: Loss, batch: Batch, step: Tensor) -> dict[str, float]:
        """The longest of the tried steps that stays within δ and improves the surrogate."""
        from surefoot.math.trust_region import backtrack  # not above: reading a config must not import torch

        config, actor = self.config.at(batch.remaining), learner.flat.actor
        start, before = actor.clone(), learner.measure(loss, batch)
        tried: list[tuple[float, float]] = []  # (KL, gain) of each length

        def accept(fraction: float) -> bool:
            actor.copy_(start).add_(step, alpha=fraction)
            kl, gain = learner.mean_kl(batch), learner.measure(loss, batch) - before
            tried.append((kl, gain))
            return kl <= config.max_kl and gain > 0.0

        fraction = backtrack(accept, config.backtrack_factor, config.backtrack_tries)
        if fraction is None:
            actor.copy_(start)
        return {
            "surrogate_gain": learner.measure(loss, batch) - before,
            "step_fraction": fraction or 0.0,
            "line_search_tries": float(len(tried)),
            "tries_over_max_kl": float(sum(kl > config.max_kl for kl, _ in tried)),
            "full_step_kl": tried[0][0],
            "full_step_gain": tried[0][1],
        }
