"""Chapter 7: Gaussian policies, and an objective of one's own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.course.grading import Exercise, Mistake
from surefoot.math.distributions.gaussian import LOG_2PI, DiagGaussian


def _densities() -> list[Mapping[str, object]]:
    drawn = torch.Generator("cpu").manual_seed(10)
    names = ("mean", "log_std", "action")
    return [{name: 0.5 * torch.randn(4, 2, generator=drawn) for name in names}]


def _gains() -> list[Mapping[str, object]]:
    ratio = torch.tensor([0.5, 0.5, 1.1, 1.1, 2.0, 2.0, 5.0, 5.0])
    advantage = torch.tensor([1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 0.8, -0.8])
    return [{"ratio": ratio, "advantage": advantage, "clip_ratio": 0.2, "dual_clip": c} for c in (3.0, 1.5)]


def clipped(ratio: Tensor, advantage: Tensor, clip_ratio: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio) * advantage)


def dual_clipped(ratio: Tensor, advantage: Tensor, clip_ratio: float, dual_clip: float) -> Tensor:
    """max(min(r·A, clip(r)·A), c·A) where A < 0, else the clipped gain."""
    gain = clipped(ratio, advantage, clip_ratio)
    return torch.where(advantage < 0.0, torch.maximum(gain, dual_clip * advantage), gain)


def _scaled(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    return ((action - mean) / log_std.exp()) ** 2


EXERCISES = {
    "gaussian_log_prob": Exercise(
        "log N(a; mean, σ²), summed over the dimensions of the action",
        lambda mean, log_std, action: DiagGaussian(mean, log_std).log_prob(action),
        _densities,
        (
            Mistake(
                "it returns a number per dimension; the joint density is their product, so sum the logarithms",
                lambda m, s, a: -(0.5 * _scaled(m, s, a) + s + 0.5 * LOG_2PI),
            ),
            Mistake(
                "log σ is missing: a wide Gaussian is lower everywhere",
                lambda m, s, a: -(0.5 * _scaled(m, s, a) + 0.5 * LOG_2PI).sum(-1),
            ),
            Mistake(
                "½·log 2π is missing: the density has to integrate to 1",
                lambda m, s, a: -(0.5 * _scaled(m, s, a) + s).sum(-1),
            ),
            Mistake(
                "the distance is divided by log σ; take exp first",
                lambda m, s, a: -(0.5 * ((a - m) / s) ** 2 + s + 0.5 * LOG_2PI).sum(-1),
            ),
            Mistake(
                "it is a mean over the dimensions; sum",
                lambda m, s, a: DiagGaussian(m, s).log_prob(a) / m.shape[-1],
            ),
        ),
        slopes=("mean", "log_std"),
    ),
    "dual_clip_gain": Exercise(
        "the clipped gain with a floor for bad actions",
        dual_clipped,
        _gains,
        (
            Mistake("there is no floor: this is PPO's own gain", lambda r, a, e, c: clipped(r, a, e)),
            Mistake(
                "the floor applies to good actions as well; only where A < 0 is the gain bounded from below",
                lambda r, a, e, c: torch.maximum(clipped(r, a, e), c * a),
            ),
            Mistake(
                "it takes the minimum with c·A, which pushes harder still; a floor is a maximum",
                lambda r, a, e, c: torch.where(a < 0.0, torch.minimum(clipped(r, a, e), c * a), clipped(r, a, e)),
            ),
            Mistake(
                "this is a loss; the gain of each sample was asked for", lambda r, a, e, c: -dual_clipped(r, a, e, c)
            ),
        ),
        slopes=("ratio",),
    ),
}
