"""What the instruments of an update compute, by themselves: spread of gradients, activity of a layer, quantiles."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value", float, Tensor)
STILL = 1e-3  # a unit whose output varies less than this (standard deviation) is dead


def gradient_noise(mean_square: Value, square: Value, count: int, samples: float) -> tuple[Value, Value]:
    """(tr Σ, ‖G‖²), unbiased, from `count` gradients gᵢ of `samples` samples each (McCandlish 2018, appendix A).

    Σ is the covariance of one sample's gradient and G the true gradient; tr Σ / ‖G‖² is the noise scale. `mean_square`
    is E‖gᵢ‖², `square` is ‖ḡ‖². With v = Σ‖gᵢ − ḡ‖² / (count − 1): tr Σ = samples·v and ‖G‖² = ‖ḡ‖² − v/count.
    """
    assert count > 1, "one gradient says nothing about its spread"
    variance = (mean_square - square) * (count / (count - 1))
    return samples * variance, square - variance / count


def half_noise(whole: Tensor, half: Tensor, samples: float) -> tuple[Tensor, Tensor]:
    """The same from the gradient of `samples` samples and that of one half of them: the other half's is 2g − h."""
    off = half - whole
    variance = 2.0 * torch.dot(off, off)
    return 0.5 * samples * variance, torch.dot(whole, whole) - 0.5 * variance


def layer_activity(hidden: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(share of dead units, effective rank) of a layer's outputs `[n, units]`; `weight` `[n]`.

    A unit is dead where its output hardly varies from sample to sample: a relu that never fires, a tanh at its end. The
    effective rank is the participation ratio (Σλ)² / Σλ² of the covariance's eigenvalues λ: the number of directions
    that the outputs really use. It takes no eigenvalues: (tr C)² / ‖C‖².
    """
    if weight is None:
        centred = (hidden - hidden.mean(0)) * len(hidden) ** -0.5
    else:
        share = (weight / weight.sum().clamp(min=1.0)).unsqueeze(-1)
        centred = (hidden - (hidden * share).sum(0)) * share.sqrt()
    variance = (centred * centred).sum(0)
    narrow = centred.mT if centred.shape[0] > centred.shape[1] else centred
    gram = narrow @ narrow.mT
    trace, square = variance.sum(), (gram * gram).sum()
    rank = (trace * trace / square.clamp(min=1e-30)).where(trace > 1e-12, 0.0)
    return (variance < STILL * STILL).float().mean(), rank
