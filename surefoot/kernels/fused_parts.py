"""What the parts of an action say of it, added up, with the slopes at their parameters, as one Triton kernel.

It scores actions under stored parameters, and measures a minibatch for `fused_parts_loss`. It multiplies and adds in
separate steps (`enable_fp_fusion`): otherwise the compiler might fuse the two in one of these uses and not in the
other, and the first ratio would not be 1. Import it late: it needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.fused_kinds import (
    BERNOULLI,
    BETA,
    CATEGORICAL,
    GAUSSIAN,
    TANH_GAUSSIAN,
    _between,
    _bit,
    _choice,
    _dimension,
    _squashed,
)
from surefoot.kernels.fused_products import _bound
from surefoot.kernels.fused_update import Terms
from surefoot.kernels.heads import KernelPart

MOST = 512  # parameters of an action: a program goes over them one after the other
BM = 128  # rows of a program: one for each of its threads
HOW = {"BM": BM, "num_warps": 4}
KINDS = ("CHOICES", "BITS", "FREE", "SQUASHED", "BETWEEN")  # what the kernel calls the numbers of parts, by code


@triton.jit
def _part(
    new_at, old_at, action_at, along_at, beside_at, inside, units, size, beta, bonus, KIND: tl.constexpr,
    KL: tl.constexpr, ENTROPY: tl.constexpr, LEARN: tl.constexpr,
):  # fmt: skip
    """(log π, H, KL) of bits or dimensions. Of two parameters, all the first ones precede the second ones."""
    log_prob = tl.zeros_like(inside).to(tl.float32)
    entropy, kl = log_prob, log_prob
    for i in range(_bound(units)):
        first = tl.load(new_at + i, mask=inside, other=0.0)
        action = tl.load(action_at + i, mask=inside, other=0.5 if KIND == BETA else 0)
        old = first
        if KL:
            old = tl.load(old_at + i, mask=inside, other=0.0)
        if KIND == BERNOULLI:
            one, two, three, along, beside = _bit(first, old, action, beta, bonus, KL, ENTROPY)
        else:
            second = tl.load(new_at + units + i, mask=inside, other=0.0)
            old_second = second
            if KL:
                old_second = tl.load(old_at + units + i, mask=inside, other=0.0)
            if KIND == GAUSSIAN:
                one, two, three, along, along_second, beside, beside_second = _dimension(
                    first, second, old, old_second, action, beta, bonus, KL, ENTROPY
                )
            elif KIND == TANH_GAUSSIAN:
                one, two, three, along, along_second, beside, beside_second = _squashed(
                    first, second, old, old_second, action, beta, bonus, KL, ENTROPY
                )
            else:
                one, two, three, along, along_second, beside, beside_second = _between(
                    first, second, old, old_second, action, beta, bonus, KL, ENTROPY
                )
            if LEARN:
                tl.store(along_at + (units + i) * size, along_second, mask=inside)
                if KL or ENTROPY:
                    tl.store(beside_at + (units + i) * size, beside_second, mask=inside)
        if LEARN:
            tl.store(along_at + i * size, along, mask=inside)
            if KL or ENTROPY:
                tl.store(beside_at + i * size, beside, mask=inside)
        log_prob += one
        entropy += two
        kl += three
    return log_prob, entropy, kl


@triton.jit
def _parts(
    log_prob, entropy, kl, new_at, old_at, action_at, along_at, beside_at, table_at, inside, size, beta, bonus,
    PARTS: tl.constexpr, KIND: tl.constexpr, KL: tl.constexpr, ENTROPY: tl.constexpr, LEARN: tl.constexpr,
):  # fmt: skip
    """With all parts of a kind added. Each has (first parameter, first number of the action, units) in the table."""
    for part in range(PARTS):
        param = tl.load(table_at + 3 * part)
        own = tl.load(table_at + 3 * part + 1)
        units = tl.load(table_at + 3 * part + 2)
        new, old, action = new_at + param, old_at + param, action_at + own
        along, beside = along_at + param * size, beside_at + param * size
        if KIND == CATEGORICAL:
            one, two, three = _choice(
                new, old, action, along, beside, inside, units, size, beta, bonus, KL, ENTROPY, LEARN
            )
        else:
            one, two, three = _part(
                new, old, action, along, beside, inside, units, size, beta, bonus, KIND, KL, ENTROPY, LEARN
            )
        log_prob += one
        entropy += two
        kl += three
    return log_prob, entropy, kl


@triton.jit(do_not_specialize=["size"])
def _score_parts(
    params_at, old_at, action_at, table_at, numbers_at, found_at, along_at, beside_at, size, log_scale,
    PARAMS: tl.constexpr, ACTIONS: tl.constexpr, BM: tl.constexpr, CHOICES: tl.constexpr, BITS: tl.constexpr,
    FREE: tl.constexpr, SQUASHED: tl.constexpr, BETWEEN: tl.constexpr, KL: tl.constexpr, ENTROPY: tl.constexpr,
    LEARN: tl.constexpr,
):  # fmt: skip
    """log π, H and KL of some rows, `[3, B]`, and the slopes `[PARAMS, B]`. LEARN False: log π alone.

    KL and ENTROPY: the positions of their weights, as in the loss.
    """
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = row < size
    rows = tl.cast(size, tl.int64)
    new_at, old_at, action_at = params_at + row * PARAMS, old_at + row * PARAMS, action_at + row * ACTIONS
    along_at, beside_at = along_at + row, beside_at + row
    beta, bonus = 0.0, 0.0
    if KL >= 0:
        beta = tl.load(numbers_at + KL)
    if ENTROPY >= 0:
        bonus = tl.load(numbers_at + ENTROPY)
    entropy = tl.zeros((BM,), tl.float32) + log_scale
    log_prob, kl = -entropy, tl.zeros((BM,), tl.float32)
    counts = (CHOICES, BITS, FREE, SQUASHED, BETWEEN)
    for KIND in tl.static_range(5):
        if counts[KIND] > 0:
            log_prob, entropy, kl = _parts(
                log_prob, entropy, kl, new_at, old_at, action_at, along_at, beside_at, table_at, inside, rows, beta,
                bonus, counts[KIND], KIND, KL >= 0, ENTROPY >= 0, LEARN,
            )  # fmt: skip
        table_at += 3 * counts[KIND]
    tl.store(found_at + row, log_prob, mask=inside)
    if LEARN:
        tl.store(found_at + rows + row, entropy, mask=inside)
        tl.store(found_at + 2 * rows + row, kl, mask=inside)


class Learned(NamedTuple):
    """What the kernel needs beyond an action and its parameters, if the loss is wanted."""

    old: Tensor  # [B, A]
    along: Tensor
    beside: Tensor
    numbers: Tensor
    terms: Terms


@dataclass(frozen=True)
class Parts:
    """The parts of an action as the kernels know them, and what they say of an action.

    `table` int32 `[parts, 3]`, by kind: first parameter, first number of the action, units.
    """

    table: Tensor
    counts: dict[str, int]
    params: int
    actions: int
    log_scale: float

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of actions under stored parameters `[..., A]`, to the bit what the loss computes."""
        found = torch.empty(params.shape[:-1], dtype=torch.float32, device=params.device)
        if found.numel():
            self._score(params.contiguous(), action.contiguous(), found, None)
        return found

    def measured(
        self, params: Tensor, old: Tensor, action: Tensor, terms: Terms, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(log π, H and KL `[3, B]`; the slopes of log π and of the loss's other terms, `[A, B]`), for this loss."""
        found, along, beside = (params.new_empty(n, len(params)) for n in (3, self.params, self.params))
        self._score(params, action, found, Learned(old, along, beside, numbers, terms))
        return found, along, beside

    def _score(self, params: Tensor, action: Tensor, found: Tensor, learned: Learned | None) -> None:
        size, terms = params.numel() // self.params, None if learned is None else learned.terms
        # What the kernel wants and does not read is `params`.
        old, along, beside, numbers = (params,) * 4 if learned is None else learned[:4]
        _score_parts[(triton.cdiv(size, BM),)](
            params, old, action, self.table, numbers, found, along, beside, size, self.log_scale, PARAMS=self.params,
            ACTIONS=self.actions, **self.counts, KL=-1 if terms is None else terms.beta,
            ENTROPY=-1 if terms is None else terms.entropy, LEARN=learned is not None, enable_fp_fusion=False, **HOW,
        )  # fmt: skip


def parts_of(parts: Sequence[KernelPart], device: torch.device) -> Parts:
    """The parts of an action, whose columns follow one another in their order."""
    rows: dict[str, list[list[int]]] = {name: [] for name in KINDS}
    param = action = 0
    for part in parts:
        rows[KINDS[part.kind.code]].append([param, action, part.size])
        param += part.kind.params * part.size
        action += part.kind.actions(part.size)
    table = torch.tensor([row for own in rows.values() for row in own], dtype=torch.int32, device=device)
    counts = {name: len(own) for name, own in rows.items()}
    return Parts(table, counts, param, action, sum(part.log_scale for part in parts))
