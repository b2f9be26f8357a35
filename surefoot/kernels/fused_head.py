"""The loss of a minibatch from the last layers' outputs, with its slope there, as two Triton kernels for autograd.

What is before (layers of any width, an encoder, a memory) and what it needs for its gradient is PyTorch's or other
kernels'; here some hundred small operations become two. The twin is `engine.losses.Loss`. Import it late: it needs
Triton.

Every program adds up its rows, and these sums are added in a fixed order. So the same seed gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from surefoot.kernels.fused_linear import _padded
from surefoot.kernels.fused_loss import SURROGATES, _actor_loss, _critic_loss
from surefoot.kernels.fused_nets import GAUSSIAN, LEAST_LOG_STD, MOST_LOG_STD, _load_log_std
from surefoot.kernels.fused_products import _bound
from surefoot.kernels.fused_update import Terms

MOST = 128  # outputs of an actor: more leave a program too few rows
TILE = 2048  # numbers of a tile
DEEP = 64  # programs whose sums are added at once
# In a program's sums: surrogate, entropy, KL, approximate KL, clipped, value loss, the worst ratio; then d log std.
FIRST_STD = tl.constexpr(8)
NAMES = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "ratio_error")


@triton.jit(do_not_specialize=["size"])
def _losses(
    out_at, value_at, log_std_at, action_at, old_at, params_at, advantage_at, target_at, before_at, numbers_at,
    d_out_at, d_value_at, sums_at, size, WIDTH: tl.constexpr, A: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr,
    HEAD: tl.constexpr, SURROGATE: tl.constexpr, EPSILON: tl.constexpr, BETA: tl.constexpr, ENTROPY: tl.constexpr,
    CRITIC: tl.constexpr, WEIGHT: tl.constexpr, NEAR: tl.constexpr, HUBER: tl.constexpr,
):  # fmt: skip
    """The slopes of some rows, and the sums over them."""
    o = tl.arange(0, BO)
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = row < size
    known = inside[:, None] & (o < A)[None, :]
    share = 1.0 / size
    sums = sums_at + tl.program_id(0) * WIDTH
    out = tl.load(out_at + row[:, None] * A + o[None, :], mask=known, other=0.0)
    log_std = _load_log_std(log_std_at, A, BO, HEAD)
    d_out, d_std, t0, t1, t2, t3, t4, error = _actor_loss(
        out, log_std, row, inside, action_at, old_at, params_at, advantage_at, 0.0, 1.0, numbers_at, share, A, BO, HEAD,
        SURROGATE, EPSILON, BETA, ENTROPY, False,
    )  # fmt: skip
    tl.store(d_out_at + row[:, None] * A + o[None, :], d_out, mask=known)
    tl.store(sums, tl.sum(t0, 0))
    tl.store(sums + 1, tl.sum(t1, 0))
    tl.store(sums + 2, tl.sum(t2, 0))
    tl.store(sums + 3, tl.sum(t3, 0))
    tl.store(sums + 4, tl.sum(t4, 0))
    tl.store(sums + 6, tl.max(error, 0))
    if HEAD == GAUSSIAN:
        tl.store(sums + FIRST_STD + o, tl.sum(d_std, 0), mask=o < A)
    if CRITIC:
        value = tl.load(value_at + row, mask=inside, other=0.0)
        columns = tl.where((o == 0)[None, :], value[:, None], 0.0)
        d_value, loss = _critic_loss(
            columns, row, inside, target_at, before_at, numbers_at, share, BO, WEIGHT, NEAR, HUBER
        )
        tl.store(d_value_at + row, tl.sum(d_value, 1), mask=inside)
        tl.store(sums + 5, tl.sum(loss, 0))


@triton.jit
def _of(column, totals, at: tl.constexpr):
    """One of the totals."""
    return tl.sum(tl.where(column == at, totals, 0.0), 0)


@triton.jit(do_not_specialize=["programs", "size"])
def _told(
    sums_at, log_std_at, numbers_at, total_at, found_at, d_log_std_at, programs, size, WIDTH: tl.constexpr,
    BW: tl.constexpr, DEEP: tl.constexpr, A: tl.constexpr, HEAD: tl.constexpr, BETA: tl.constexpr,
    ENTROPY: tl.constexpr, CRITIC: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """The loss, its terms in the order of `NAMES`, and the gradient of the log std."""
    column, deep = tl.arange(0, BW), tl.arange(0, DEEP)
    totals, worst = tl.zeros((BW,), tl.float32), tl.zeros((DEEP,), tl.float32)
    for begin in range(0, _bound(programs), DEEP):
        row = begin + deep
        mask = (row < programs)[:, None] & (column < WIDTH)[None, :]
        totals += tl.sum(tl.load(sums_at + row[:, None] * WIDTH + column[None, :], mask=mask, other=0.0), 0)
        worst = tl.maximum(worst, tl.load(sums_at + row * WIDTH + 6, mask=row < programs, other=0.0))
    share = 1.0 / size
    gain = _of(column, totals, 0) * share
    if BETA >= 0:
        gain -= tl.load(numbers_at + BETA) * _of(column, totals, 2) * share
    entropy, total = _of(column, totals, 1) * share, -gain
    if CRITIC:
        of_value = _of(column, totals, 5) * share
        total += of_value * tl.load(numbers_at + WEIGHT)
        tl.store(found_at + 1, of_value)
    if ENTROPY >= 0:
        total -= tl.load(numbers_at + ENTROPY) * entropy
    tl.store(total_at, total)
    tl.store(found_at, -gain)
    tl.store(found_at + 2, entropy)
    tl.store(found_at + 3, _of(column, totals, 3) * share)
    tl.store(found_at + 4, _of(column, totals, 4) * share)
    tl.store(found_at + 5, tl.max(worst, 0))
    if HEAD == GAUSSIAN:
        own = (column >= FIRST_STD) & (column < FIRST_STD + A)
        raw = tl.load(log_std_at + column - FIRST_STD, mask=own, other=0.0)
        free = (raw >= LEAST_LOG_STD) & (raw <= MOST_LOG_STD)  # nothing beyond the range that a log std is kept in
        tl.store(d_log_std_at + column - FIRST_STD, tl.where(free, totals, 0.0), mask=own)


class Columns(NamedTuple):
    """What the loss reads of a minibatch, `[B, ...]` each."""

    action: Tensor
    log_prob: Tensor
    params: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


@dataclass(frozen=True)
class HeadLoss:
    """A loss on an actor that chooses (`head` 0) or draws from a Gaussian (1), with so many outputs.

    `numbers`: those of the loss, at the positions that `terms` says.
    """

    head: int
    outputs: int
    terms: Terms
    numbers: Tensor

    def __call__(
        self, out: Tensor, value: Tensor | None, log_std: Tensor | None, columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """(the loss, all that `NAMES` says), from the outputs `[B, A]`, V `[B]` and the log stds as they are `[A]`."""
        flat = tuple(column.contiguous() for column in columns)
        unused = out.detach()  # where a kernel wants a tensor that it does not read
        found: tuple[Tensor, Tensor] = _AtHead.apply(
            out.contiguous(),
            unused if value is None else value.contiguous(),
            unused if log_std is None else log_std,
            Columns(*flat),
            self,
        )
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """What the kernels call A, BO and BM."""
        width = _padded(self.outputs)
        return {"A": self.outputs, "BO": width, "BM": TILE // width}

    @property
    def constants(self) -> dict[str, object]:
        terms, weighted = self.terms, self.terms.value_weight >= 0
        assert terms.surrogate is not None
        return {
            "HEAD": self.head,
            "SURROGATE": SURROGATES.index(terms.surrogate),
            "EPSILON": terms.epsilon,
            "NEAR": terms.value_clip if weighted else -1,
            "HUBER": terms.huber,
        }

    @property
    def weights(self) -> dict[str, object]:
        terms = self.terms
        both = {"BETA": terms.beta, "ENTROPY": terms.entropy, "WEIGHT": terms.value_weight}
        return {**both, "CRITIC": terms.value_weight >= 0, "WIDTH": FIRST_STD.value + self.outputs}


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class WithSlopes(torch.autograd.Function):
    """A loss whose forward pass keeps its slopes at its first arguments, the last two being no tensors.

    It has no second derivative, and is what is differentiated: its own slope is 1.
    """

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, _: Tensor, __: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        return (*(slope if needed else None for slope, needed in wanted), None, None)


class _AtHead(WithSlopes):
    """The loss for autograd, at the outputs, values and log stds."""

    @staticmethod
    def forward(
        ctx: Kept, out: Tensor, value: Tensor, log_std: Tensor, columns: Columns, loss: HeadLoss
    ) -> tuple[Tensor, Tensor]:
        size, sizes, weights = len(out), loss.sizes, loss.weights
        programs = triton.cdiv(size, sizes["BM"])
        sums = out.new_zeros(programs, FIRST_STD.value + loss.outputs)
        d_out, d_value, d_log_std = torch.empty_like(out), torch.empty_like(value), torch.empty_like(log_std)
        total, found = out.new_empty(()), out.new_empty(len(NAMES))
        action, log_prob, params, advantage, target, before = columns
        _losses[(programs,)](
            out, value, log_std, action, log_prob, params, advantage, target, before, loss.numbers, d_out, d_value,
            sums, size, **sizes, **loss.constants, **weights, num_warps=4,
        )  # fmt: skip
        _told[(1,)](
            sums, log_std, loss.numbers, total, found, d_log_std, programs, size, **weights, A=loss.outputs,
            HEAD=loss.head, BW=triton.next_power_of_2(FIRST_STD.value + loss.outputs), DEEP=DEEP, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(d_out, d_value, d_log_std)
        ctx.mark_non_differentiable(found)
        return total, found
