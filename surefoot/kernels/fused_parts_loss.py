"""The loss of a minibatch from an action's parameters on, whatever its parts, as three Triton kernels for autograd.

The first measures every row (`fused_parts`): log π, H and KL(old‖new), summed over the parts, and their slopes at the
parameters. The second has the surrogate and the critic's loss, and with them the slope of the whole; the third adds up
the sums of the programs in a fixed order (`fused_head._told`). An action of one choice or one plain Gaussian is
`fused_head`'s, which needs no slopes in between. The twin is `engine.losses.Loss`. Import it late: it needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.fused_head import DEEP, FIRST_STD, NAMES, Columns, Kept, WithSlopes, _told
from surefoot.kernels.fused_loss import SURROGATES, _critic_loss, _gain
from surefoot.kernels.fused_parts import BM, HOW, Parts
from surefoot.kernels.fused_update import Terms

WIDTH = FIRST_STD.value  # of a program's sums


@triton.jit(do_not_specialize=["size"])
def _weigh_parts(
    found_at, along_at, beside_at, log_prob_at, advantage_at, value_at, target_at, before_at, numbers_at, d_params_at,
    d_value_at, sums_at, size, PARAMS: tl.constexpr, BM: tl.constexpr, SURROGATE: tl.constexpr, EPSILON: tl.constexpr,
    BETA: tl.constexpr, ENTROPY: tl.constexpr, CRITIC: tl.constexpr, WEIGHT: tl.constexpr, NEAR: tl.constexpr,
    HUBER: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The slopes of the loss at parameters and values of some rows, and the sums over them, in `fused_head`'s order."""
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = row < size
    rows = tl.cast(size, tl.int64)
    share = 1.0 / size
    sums = sums_at + tl.program_id(0) * WIDTH
    log_prob = tl.load(found_at + row, mask=inside, other=0.0)
    old = tl.load(log_prob_at + row, mask=inside, other=0.0)
    advantage = tl.load(advantage_at + row, mask=inside, other=0.0)
    epsilon = 0.0
    if EPSILON >= 0:
        epsilon = tl.load(numbers_at + EPSILON)
    gain, slope, clipped, ratio = _gain(log_prob, old, advantage, epsilon, SURROGATE)
    for i in range(PARAMS):
        d = -slope * tl.load(along_at + i * rows + row, mask=inside, other=0.0)
        if BETA >= 0 or ENTROPY >= 0:
            d += tl.load(beside_at + i * rows + row, mask=inside, other=0.0)
        tl.store(d_params_at + row * PARAMS + i, d * share, mask=inside)
    tl.store(sums, tl.sum(tl.where(inside, gain, 0.0), 0))
    tl.store(sums + 1, tl.sum(tl.load(found_at + rows + row, mask=inside, other=0.0), 0))
    tl.store(sums + 2, tl.sum(tl.load(found_at + 2 * rows + row, mask=inside, other=0.0), 0))
    tl.store(sums + 3, tl.sum(tl.where(inside, ratio - 1.0 - (log_prob - old), 0.0), 0))
    tl.store(sums + 4, tl.sum(tl.where(inside, clipped, 0.0), 0))
    tl.store(sums + 6, tl.max(tl.where(inside, tl.abs(ratio - 1.0), 0.0), 0))
    if CRITIC:
        value = tl.load(value_at + row, mask=inside, other=0.0)[:, None]
        d_value, loss = _critic_loss(
            value, row, inside, target_at, before_at, numbers_at, share, 1, WEIGHT, NEAR, HUBER
        )
        tl.store(d_value_at + row, tl.sum(d_value, 1), mask=inside)
        tl.store(sums + 5, tl.sum(loss, 0))


@dataclass(frozen=True)
class PartsLoss:
    """A loss on actions of these parts. `numbers`: those of the loss, at the positions that `terms` says."""

    parts: Parts
    terms: Terms
    numbers: Tensor

    def __call__(self, params: Tensor, value: Tensor | None, columns: Columns) -> tuple[Tensor, Tensor]:
        """(the loss, all that `NAMES` says), from the parameters `[B, A]` and V `[B]`."""
        unused = params.detach()
        found: tuple[Tensor, Tensor] = _AtParams.apply(
            params.contiguous(),
            unused if value is None else value.contiguous(),
            Columns(*(column.contiguous() for column in columns)),
            self,
        )
        return found

    @property
    def weights(self) -> dict[str, object]:
        terms = self.terms
        both = {"BETA": terms.beta, "ENTROPY": terms.entropy, "WEIGHT": terms.value_weight}
        return {**both, "CRITIC": terms.value_weight >= 0, "WIDTH": WIDTH}


class _AtParams(WithSlopes):
    """The loss for autograd, at the parameters and values."""

    @staticmethod
    def forward(ctx: Kept, params: Tensor, value: Tensor, columns: Columns, loss: PartsLoss) -> tuple[Tensor, Tensor]:
        size, parts, terms = len(params), loss.parts, loss.terms
        assert terms.surrogate is not None
        programs = triton.cdiv(size, BM)
        sums, total, found = params.new_zeros(programs, WIDTH), params.new_empty(()), params.new_empty(len(NAMES))
        d_params, d_value = torch.empty_like(params), torch.empty_like(value)
        measures, along, beside = parts.measured(params, columns.params, columns.action, terms, loss.numbers)
        _weigh_parts[(programs,)](
            measures, along, beside, columns.log_prob, columns.advantage, value, columns.target, columns.value,
            loss.numbers, d_params, d_value, sums, size, PARAMS=parts.params,
            SURROGATE=SURROGATES.index(terms.surrogate), EPSILON=terms.epsilon, HUBER=terms.huber,
            NEAR=terms.value_clip if terms.value_weight >= 0 else -1, **loss.weights, **HOW,
        )  # fmt: skip
        _told[(1,)](
            sums, sums, loss.numbers, total, found, sums, programs, size, **loss.weights, A=1, HEAD=0, BW=WIDTH,
            DEEP=DEEP, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(d_params, d_value)
        ctx.mark_non_differentiable(found)
        return total, found
