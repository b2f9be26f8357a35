"""Action distributions: batches of them, without `torch.distributions` in the loop.

Each is made from one tensor of parameters (stored with the rollout, so that KL(old‖new) is exact) and drawn from by a
deterministic map of pre-drawn noise, so that sampling needs no random number generator in the hot loop.
"""

from surefoot.math.distributions.beta import Beta
from surefoot.math.distributions.composite import Composite, Part
from surefoot.math.distributions.discrete import (
    Bernoulli,
    Categorical,
    MultiCategorical,
    mask_logits,
    masked_fill_value,
)
from surefoot.math.distributions.gaussian import DiagGaussian, TanhGaussian

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Composite",
    "DiagGaussian",
    "MultiCategorical",
    "Part",
    "TanhGaussian",
    "mask_logits",
    "masked_fill_value",
]
