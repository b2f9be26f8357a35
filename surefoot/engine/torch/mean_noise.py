"""RPO's noise on the mean: an update that also has to score its actions under policies next to its own.

    r_t(θ) = N(a_t; μ_θ(s_t) + z_t, σ_θ) / π_old(a_t|s_t),    z_t ~ U(−α, α) for every sample, dimension and epoch

A Gaussian around μ + z gives a the density that the one around μ gives a − z. So the actions are shifted instead of the
means, and every engine and kernel computes the loss unchanged. log π_old stays as it was collected, without noise, so
the ratios of the first minibatch are not 1. The check that the policy still agrees with itself looks at the actions
without noise, and so do the exact KL and the instruments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from surefoot.errors import UsageError
from surefoot.kernels.heads import GAUSSIAN

if TYPE_CHECKING:
    from surefoot.engine.shares import Shares
    from surefoot.policies.actions.model import ActionModel
    from surefoot.types import Batch


def gaussian_columns(actions: ActionModel) -> list[int]:
    """The columns of a stored action that a plain Gaussian draws; UsageError if there are none."""
    found, at = list[int](), 0
    for part in actions.kernel_parts:
        size = part.kind.actions(part.size)
        found += range(at, at + size) if part.kind is GAUSSIAN else ()
        at += size
    if not found:
        raise UsageError(
            "mean_noise shifts the mean of a Gaussian, which this policy's actions do not have; drop it, or use it on "
            "an env with Box actions and action_bounds=clip"
        )
    return found


def with_mean_noise(
    batch: Batch, alpha: float, actions: ActionModel, generator: torch.Generator, shares: Shares
) -> Batch:
    """The batch with its Gaussian actions shifted by −z. Several processes draw z for the samples of all of them."""
    columns = gaussian_columns(actions)
    group, steps = shares.group, len(batch) // batch.num_envs
    longest = int(group.max_(torch.tensor([steps], dtype=torch.int64, device="cpu"))) if shares.several else steps
    shape = (longest, group.size, batch.num_envs, len(columns))
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device)
    own = drawn[:steps, group.index].reshape(len(batch), len(columns)).to(batch.action.device)
    action = batch.action.clone()
    action[:, columns] -= (2.0 * own - 1.0) * alpha
    return replace(batch, action=action)
