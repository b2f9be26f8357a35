"""From the programs' sums of a gradient to the optimizer's step, as two Triton kernels. Import it late.

The sums are added in a fixed order. Then the norm is clipped and Adam or RMSprop takes its step, with rates from the
table of `engine.cuda.optimizer.PlannedOptimizer`, which is the readable twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.agents import stride_of
from surefoot.kernels.fused_products import _bound
from surefoot.kernels.fused_update import PROGRAMS, SUMS, Gradients

COLUMNS, DEEP = 64, 64  # columns per program and rows at once, in the table of sums
DEEP_GROUPS = 16  # groups of rows at once
STEP = 256  # parameters per program of the optimizer's step


@triton.jit(do_not_specialize=["programs", "each"])
def _add_up(
    sums_at, total_at, squares_at, programs, each, ACTOR_SIZE: tl.constexpr, TOTAL: tl.constexpr, WIDTH: tl.constexpr,
    GROUP: tl.constexpr, COLUMNS: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """The gradient and the sums, and for each program the squared norm of its columns: the actor's, and all.

    `each`: rows of the table that are a group, up to `GROUP`. They are added first, one after the other.
    """
    agent = tl.program_id(1)
    sums_at += agent.to(tl.int64) * programs * WIDTH
    total_at += agent * WIDTH
    squares_at += agent * tl.num_programs(0) * 2
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < TOTAL + 6
    deep = tl.arange(0, DEEP)
    total = tl.zeros((COLUMNS,), tl.float32)
    for begin in range(0, _bound(tl.cdiv(programs, each)), DEEP):
        of_group = tl.zeros((DEEP, COLUMNS), tl.float32)
        for at in tl.static_range(GROUP):
            row = (begin + deep) * each + at
            mask = ((row < programs) & (at < each))[:, None] & known[None, :]
            of_group += tl.load(sums_at + row[:, None] * WIDTH + column[None, :], mask=mask, other=0.0)
        total += tl.sum(of_group, 0)
    tl.store(total_at + column, total, mask=known)
    square = tl.where(column < TOTAL, total * total, 0.0)
    at = squares_at + tl.program_id(0) * 2
    tl.store(at, tl.sum(tl.where(column < ACTOR_SIZE, square, 0.0), 0))
    tl.store(at + 1, tl.sum(square, 0))


@triton.jit
def _report(
    at, sums, numbers_at, norm, size, ACTOR: tl.constexpr, CRITIC: tl.constexpr, BETA: tl.constexpr,
    KL: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    """Add the metrics of a minibatch to those before it, in the order of `engine.losses.Loss`, then the norm."""
    share = 1.0 / size
    if ACTOR:
        gain = tl.load(sums) * share
        if BETA >= 0:
            gain -= tl.load(numbers_at + BETA) * tl.load(sums + 2) * share
        tl.store(at, tl.load(at) - gain)
        at += 1
    if CRITIC:
        tl.store(at, tl.load(at) + tl.load(sums + 5) * share)
        at += 1
    if ACTOR:
        tl.store(at, tl.load(at) + tl.load(sums + 1) * share)
        at += 1
        if KL:
            tl.store(at, tl.load(at) + tl.load(sums + 3) * share)
            at += 1
        if CLIPPED:
            tl.store(at, tl.load(at) + tl.load(sums + 4) * share)
            at += 1
    tl.store(at, tl.load(at) + norm)


@triton.jit(do_not_specialize=["programs", "part", "size", "begin", "split"])
def _descend(
    theta, total_at, first_at, second_at, squares_at, table_at, index_at, limit_at, numbers_at, metrics_at, error_at,
    worst_at, look_at, look_squares_at, blocks, part, programs, size, begin, split, eps, PLANNED: tl.constexpr,
    STRIDE: tl.constexpr, WIDTH: tl.constexpr, NUMBERS: tl.constexpr, REPORTED: tl.constexpr, BLOCKS: tl.constexpr,
    PROGRAMS: tl.constexpr, STEP: tl.constexpr, ACTOR_SIZE: tl.constexpr, TOTAL: tl.constexpr, SLICES: tl.constexpr,
    ADAM: tl.constexpr, LIMIT: tl.constexpr, OPENING: tl.constexpr, ACTOR: tl.constexpr, CRITIC: tl.constexpr,
    BETA: tl.constexpr, KL: tl.constexpr, CLIPPED: tl.constexpr,
):  # fmt: skip
    agent = tl.program_id(1)
    theta, first_at, second_at = theta + agent * STRIDE, first_at + agent * STRIDE, second_at + agent * STRIDE
    total_at, squares_at = total_at + agent * WIDTH, squares_at + agent * blocks * 2
    table_at, index_at, limit_at = table_at + agent * PLANNED * (1 + SLICES), index_at + agent, limit_at + agent
    numbers_at, metrics_at = numbers_at + agent * NUMBERS, metrics_at + agent * REPORTED
    error_at, worst_at = error_at + agent * programs, worst_at + agent
    look_at, look_squares_at = look_at + agent * ACTOR_SIZE, look_squares_at + agent
    i = tl.program_id(0) * STEP + tl.arange(0, STEP)
    block = tl.arange(0, BLOCKS)
    squares = tl.load(squares_at + block * 2 + 1, mask=block < blocks, other=0.0)
    norm = tl.sqrt(tl.sum(squares, 0))
    scale = 1.0
    if LIMIT:
        scale = tl.minimum(tl.load(limit_at) / (norm + 1e-6), 1.0)
    index = tl.load(index_at) + part
    row = table_at + index * (1 + SLICES)
    correction = tl.load(row)
    rate = tl.load(row + 1) + i * 0.0
    if SLICES > 1:
        rate = tl.where(i < split, rate, tl.load(row + 2))
    trained = (i >= begin) & (i < TOTAL)
    plain = tl.load(total_at + i, mask=i < TOTAL, other=0.0)
    gradient = plain * scale
    second = tl.load(second_at + i, mask=trained, other=0.0)
    if ADAM:
        first = tl.load(first_at + i, mask=trained, other=0.0)
        first += 0.1 * (gradient - first)
        tl.store(first_at + i, first, mask=trained)
        second = 0.999 * second + 0.001 * gradient * gradient
        move = first / (tl.sqrt(second) * correction + eps)
    else:
        second = 0.99 * second + 0.01 * gradient * gradient
        move = gradient / (tl.sqrt(second) + eps)
    tl.store(second_at + i, second, mask=trained)
    tl.store(theta + i, tl.load(theta + i, mask=trained, other=0.0) + rate * move, mask=trained)
    if OPENING:
        own = i < ACTOR_SIZE
        tl.store(look_at + i, tl.load(look_at + i, mask=own, other=0.0) + plain, mask=own)
    if tl.program_id(0) == 0:
        _report(metrics_at, total_at + TOTAL, numbers_at, norm, size, ACTOR, CRITIC, BETA, KL, CLIPPED)
        if OPENING:
            own_squares = tl.load(squares_at + block * 2, mask=block < blocks, other=0.0)
            tl.store(look_squares_at, tl.load(look_squares_at) + tl.sum(own_squares, 0))
            if ACTOR:
                program = tl.arange(0, PROGRAMS)
                worst = tl.max(tl.load(error_at + program, mask=program < programs, other=0.0), 0)
                tl.store(worst_at, tl.where(index == 0, worst, tl.load(worst_at)))


@dataclass(frozen=True)
class Optimizer:
    """State and rates of an optimizer. `limit` None: the norm is not clipped. Several agents have a row of each."""

    first: Tensor
    second: Tensor
    table: Tensor  # a row for each step, `[steps, 1 + slices]`: see `PlannedOptimizer`
    index: Tensor  # the first step of this pass
    limit: Tensor | None
    begin: int  # the first parameter that is trained
    split: int  # where the second slice begins, if there is one
    slices: int
    adam: bool
    eps: float


@dataclass(frozen=True)
class Report:
    """Where the results of steps are added up. Several agents have a row of each."""

    metrics: Tensor
    ratio_error: Tensor
    look: Tensor  # the sum of the actor's gradients
    look_squares: Tensor  # the sum of their squared norms


def add_up(gradients: Gradients, total: Tensor, squares: Tensor | None = None, actor_size: int = 0) -> None:
    """The gradient and, behind it, the sums of the loss's terms, into `total`, in rows of `gradients.width`. `squares`:
    the norms of its columns, the actor's and all.
    """
    blocks = triton.cdiv(gradients.parameters + SUMS, COLUMNS)
    found = total.new_zeros(gradients.agents, blocks, 2) if squares is None else squares
    _add_up[(blocks, gradients.agents)](
        gradients.sums, total, found, gradients.programs, gradients.rows_of_group, ACTOR_SIZE=actor_size,
        TOTAL=gradients.parameters, WIDTH=gradients.width, GROUP=gradients.group, COLUMNS=COLUMNS,
        DEEP=DEEP if gradients.group == 1 else DEEP_GROUPS,
    )  # fmt: skip


class Descent:
    """Steps along the gradients that `Gradients` has computed."""

    def __init__(self, gradients: Gradients, optimizer: Optimizer, report: Report) -> None:
        self.gradients, self.optimizer, self.report = gradients, optimizer, report
        theta, self.actor_size = gradients.theta, report.look.shape[-1]
        assert theta.stride() == optimizer.first.stride() == optimizer.second.stride()
        self.total = theta.new_zeros(*theta.shape[:-1], gradients.width)
        self.blocks = triton.cdiv(gradients.parameters + SUMS, COLUMNS)
        self.squares = theta.new_zeros(gradients.agents, self.blocks, 2)

    def add_up(self) -> None:
        """The gradient and, behind it, the sums of the loss's terms, into `total`."""
        add_up(self.gradients, self.total, self.squares, self.actor_size)

    def step(self, part: int, *, opening: bool) -> None:
        """`opening`: the gradient counts among those that an update begins with."""
        gradients, optimizer, report, terms = self.gradients, self.optimizer, self.report, self.gradients.terms
        size = gradients.parameters
        self.add_up()
        limit = self.squares if optimizer.limit is None else optimizer.limit
        _descend[(triton.cdiv(size, STEP), gradients.agents)](
            gradients.theta, self.total, optimizer.first, optimizer.second, self.squares, optimizer.table,
            optimizer.index, limit, gradients.numbers, report.metrics, gradients.errors, report.ratio_error,
            report.look, report.look_squares, self.blocks, part, gradients.programs, gradients.size, optimizer.begin,
            optimizer.split, optimizer.eps, STRIDE=stride_of(gradients.theta), WIDTH=gradients.width,
            PLANNED=optimizer.table.shape[-2],
            NUMBERS=gradients.numbers.shape[-1], REPORTED=report.metrics.shape[-1],
            BLOCKS=triton.next_power_of_2(self.blocks), PROGRAMS=triton.next_power_of_2(PROGRAMS), STEP=STEP,
            ACTOR_SIZE=self.actor_size, TOTAL=size,
            SLICES=optimizer.slices, ADAM=optimizer.adam, LIMIT=optimizer.limit is not None, OPENING=opening,
            ACTOR=gradients.with_actor, CRITIC=gradients.with_critic, BETA=terms.beta, KL=terms.approx_kl,
            CLIPPED=terms.clip_fraction,
        )  # fmt: skip
