"""Generalised state-dependent exploration (gSDE; Raffin, Kober & Stulp 2021): noise that is a function of the state.

    a = mean(s) + φ(s)ᵀ(σ ⊙ E)      E [F, D] standard normal, drawn once for a stretch of time
    a ~ N(mean(s), diag v(s))       v_d(s) = Σ_j φ_j(s)² σ_jd²

Within a stretch, similar states get similar noise, so that a robot moves smoothly instead of shaking. If all features
were 0, there would be no noise and no density, so we add one more feature that is always `LEAST_STD`, with σ = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.math.constants import LEAST_STD


def sde_log_std(features: Tensor, log_std: Tensor) -> Tensor:
    """½ log v(s), `[..., D]`, from φ(s) = `features` `[..., F]` and log σ = `log_std` `[F, D]`."""
    assert features.shape[-1] == log_std.shape[0], f"features {tuple(features.shape)}, log_std {tuple(log_std.shape)}"
    variance = (features * features) @ torch.exp(2.0 * log_std) + LEAST_STD**2
    return 0.5 * variance.log()


def sde_noise(features: Tensor, log_std: Tensor, matrix: Tensor) -> Tensor:
    """φ(s)ᵀ(σ ⊙ E) / √v(s), `[n, D]`: standard normal over E = `matrix` `[n, F + 1, D]`, one for each row."""
    assert matrix.shape[1:] == (log_std.shape[0] + 1, log_std.shape[1]), f"matrix {tuple(matrix.shape)}"
    scaled = torch.exp(log_std) * matrix[:, :-1]
    shift = (features[:, None] @ scaled)[:, 0] + LEAST_STD * matrix[:, -1]
    return shift * torch.exp(-sde_log_std(features, log_std))
