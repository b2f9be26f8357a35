"""The gradient of a minibatch's loss, of actor and critic, as one Triton kernel. Import it late: it needs Triton.

Every program takes some rows through one of the two nets, forwards and backwards, and writes its own sum of the
gradient. `fused_descent` adds these sums in a fixed order, so that the same seed gives the same bytes. The order
depends on the number of rows alone: where they are few, groups of `GROUP` tiles are added tile by tile, and then the
groups. One agent has a program for each tile, and many have one for each group, which writes and reads fewer sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.agents import padded, stride_of
from surefoot.kernels.fused_linear import _to_z
from surefoot.kernels.fused_loss import SURROGATES, _actor_loss, _critic_loss, _moments, _standard
from surefoot.kernels.fused_nets import (
    GAUSSIAN,
    LEAST_LOG_STD,
    MANY,
    MANY_ROWS,
    MOST_LOG_STD,
    ROWS,
    Net,
    _forwards,
    _load_log_std,
    _load_net,
    sizes_of,
)
from surefoot.kernels.fused_products import _bound, _parts, _product, _row_sums, _transposed

PROGRAMS = 132  # per net, at most; each writes as many numbers as there are parameters
GROUP = 8  # small tiles whose sums are added first
FULL = 2 * 132  # programs that a large GPU has at once, two for each multiprocessor
SUMS = 6  # over the rows: surrogate, entropy, KL, approximate KL, clipped, value loss
LEARN = {"num_warps": 4, "num_stages": 1}
CHUNKS = 32  # parts of a minibatch, for the moments of its advantages
BLOCK = 1024  # advantages at once


@triton.jit
def _store_layer(at, dw, db, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):
    k = tl.arange(0, BK)
    n = tl.arange(0, BN)
    tl.store(at + n[:, None] * K + k[None, :], dw, mask=(n[:, None] < N) & (k[None, :] < K))
    tl.store(at + K * N + n, db, mask=n < N)


@triton.jit
def _zeros(N: tl.constexpr):
    return tl.zeros((N,), tl.float32)


@triton.jit
def _of_tile(x, R: tl.constexpr):
    """What a tile adds to a sum over its rows: their sum if R is 1, or else every row, to be added up in the end."""
    found = x
    if R == 1:
        found = tl.sum(x, 0, keep_dims=True)
    return found


@triton.jit
def _first(columns):
    """The first of 16 columns."""
    return tl.sum(tl.where(tl.arange(0, 16)[None, :] == 0, columns, 0.0), 1)


@triton.jit
def _rows(tile, first, size, order_at, x_at, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, ORDER: tl.constexpr):
    """(the rows of a tile, whether they exist, their observations)."""
    within = tile * BM + tl.arange(0, BM)
    inside = within < size
    row = (first + within).to(tl.int64)
    if ORDER:
        row = tl.load(order_at + row, mask=inside, other=0)
    d = tl.arange(0, BD)
    x = tl.load(x_at + row[:, None] * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
    return row, inside, x


@triton.jit
def _store_log_std(at, raw_at, gradient, A: tl.constexpr, BO: tl.constexpr):
    """Nothing beyond the range that a log std is kept in."""
    o = tl.arange(0, BO)
    raw = tl.load(raw_at + o, mask=o < A, other=0.0)
    free = (raw >= LEAST_LOG_STD) & (raw <= MOST_LOG_STD)
    tl.store(at + o, tl.where(free, gradient, 0.0), mask=o < A)


@triton.jit
def _store_sums(
    own, theta, error_at, d_log_std, worst, s0, s1, s2, s3, s4, LOG_STD: tl.constexpr, TOTAL: tl.constexpr,
    A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """The sums over the rows, and what only an actor has: the gradient of its log std, its worst ratio."""
    if HEAD == GAUSSIAN:
        _store_log_std(own + LOG_STD, theta + LOG_STD, tl.sum(d_log_std, 0), A, BO)
    if HEAD >= 0:
        tl.store(own + TOTAL, tl.sum(s0, 0))
        tl.store(own + TOTAL + 1, tl.sum(s1, 0))
        tl.store(own + TOTAL + 2, tl.sum(s2, 0))
        tl.store(own + TOTAL + 3, tl.sum(s3, 0))
        tl.store(own + TOTAL + 4, tl.sum(s4, 0))
        tl.store(error_at, tl.max(worst, 0))
    else:
        tl.store(own + TOTAL + 5, tl.sum(s0, 0))


@triton.jit
def _one_net(
    program, theta, x_at, action_at, old_at, params_at, advantage_at, target_at, value_at, order_at, mean, stretch,
    numbers_at, sums_at, error_at, first, size, each, LOG_STD: tl.constexpr, TOTAL: tl.constexpr, WIDTH: tl.constexpr,
    TILES: tl.constexpr, F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, H2: tl.constexpr, A: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BH2: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, R: tl.constexpr,
    HEAD: tl.constexpr, SURROGATE: tl.constexpr, EPSILON: tl.constexpr, BETA: tl.constexpr, ENTROPY: tl.constexpr,
    NORMALIZE: tl.constexpr, WEIGHT: tl.constexpr, NEAR: tl.constexpr, HUBER: tl.constexpr, ORDER: tl.constexpr,
    ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """`R`: 1 if the sums over a tile's rows are to be the same whether one program takes it or another."""
    L: tl.constexpr = H2 if H2 > 0 else H  # numbers before the last layer
    SECOND: tl.constexpr = F + D * H + H
    LAST: tl.constexpr = SECOND + (H * H2 + H2 if H2 > 0 else 0)
    w, b, w2, b2, w3, b3 = _load_net(theta, F, D, H, H2, A, BD, BH, BH2, BO, P)
    dw, db = tl.zeros((BH, BD), tl.float32), tl.zeros((BH, 16), tl.float32)
    dw3, db3 = tl.zeros((BH2, BO), tl.float32), tl.zeros((R, BO), tl.float32)
    dw2, db2 = tl.zeros((BH2, BH), tl.float32), tl.zeros((BH2, 16), tl.float32)
    log_std, d_log_std = _load_log_std(theta + LOG_STD, A, BO, HEAD), tl.zeros((R, BO), tl.float32)
    s0, s1, s2, s3, s4, worst = _zeros(R), _zeros(R), _zeros(R), _zeros(R), _zeros(R), _zeros(BM)
    ones = (tl.zeros((BM, 16), tl.float32) + 1.0).to(tl.bfloat16)
    share = 1.0 / size
    begin, end = program * (TILES if TILES > 0 else each), tl.minimum((program + 1) * each, tl.cdiv(size, BM))
    for at in range(TILES if TILES > 0 else _bound(end - begin)):  # a number that is known needs fewer registers
        row, inside, x = _rows(begin + at, first, size, order_at, x_at, D, BD, BM, ORDER)
        seen = _parts(x, P)
        h, inner, top, last, out = _forwards(seen, w, b, w2, b2, w3, b3, H2, ACTIVATION, P)
        if HEAD >= 0:
            d_out, d_std, t0, t1, t2, t3, t4, error = _actor_loss(
                out, log_std, row, inside, action_at, old_at, params_at, advantage_at, mean, stretch, numbers_at, share,
                A, BO, HEAD, SURROGATE, EPSILON, BETA, ENTROPY, NORMALIZE,
            )  # fmt: skip
            if HEAD == GAUSSIAN:
                d_log_std += _of_tile(d_std, R)
            s0, s1 = s0 + _of_tile(t0, R), s1 + _of_tile(t1, R)
            s2, s3, s4 = s2 + _of_tile(t2, R), s3 + _of_tile(t3, R), s4 + _of_tile(t4, R)
            worst = tl.maximum(worst, error)
        else:
            d_out, t0 = _critic_loss(out, row, inside, target_at, value_at, numbers_at, share, BO, WEIGHT, NEAR, HUBER)
            s0 += _of_tile(t0, R)
        # A tile's products begin at 0 and are added afterwards: tensor cores round a long sum towards 0.
        db3 += _of_tile(d_out, R)
        back = _parts(d_out, P)
        dw3 += _product(_transposed(last), back, P)
        dz = _to_z(_product(back, _transposed(w3), P), top, ACTIVATION)
        if H2 > 0:
            back = _parts(dz, P)
            across = _transposed(back)
            dw2, db2 = dw2 + _product(across, inner, P), db2 + _row_sums(across, ones, P)
            dz = _to_z(_product(back, _transposed(w2), P), h, ACTIVATION)
        across = _transposed(_parts(dz, P))
        dw, db = dw + _product(across, seen, P), db + _row_sums(across, ones, P)
    own = sums_at + program * WIDTH
    _store_layer(own + F, dw, _first(db), D, H, BD, BH)
    if H2 > 0:
        _store_layer(own + SECOND, dw2, _first(db2), H, H2, BH, BH2)
    _store_layer(own + LAST, tl.trans(dw3), tl.sum(db3, 0), L, A, BH2, BO)
    _store_sums(own, theta, error_at + program, d_log_std, worst, s0, s1, s2, s3, s4, LOG_STD, TOTAL, A, BO, HEAD)


@triton.jit(do_not_specialize=["first", "size", "each", "part"])
def _gradients(
    theta, x_at, action_at, old_at, params_at, advantage_at, target_at, value_at, order_at, moments_at, numbers_at,
    sums_at, error_at, first, size, each, part, TILES: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
    LOG_STD: tl.constexpr, TOTAL: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr, NUMBERS: tl.constexpr,
    F: tl.constexpr, H: tl.constexpr, H2: tl.constexpr, A: tl.constexpr,
    BH: tl.constexpr, BH2: tl.constexpr, BO: tl.constexpr,
    VF: tl.constexpr, VH: tl.constexpr, VH2: tl.constexpr, VBH: tl.constexpr, VBH2: tl.constexpr, VBO: tl.constexpr,
    HEAD: tl.constexpr, ACTOR: tl.constexpr, CRITIC: tl.constexpr,
    SURROGATE: tl.constexpr, EPSILON: tl.constexpr, BETA: tl.constexpr, ENTROPY: tl.constexpr,
    NORMALIZE: tl.constexpr, WEIGHT: tl.constexpr, NEAR: tl.constexpr, HUBER: tl.constexpr, ORDER: tl.constexpr,
    ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    net = tl.program_id(1) if ACTOR else 1
    agent = tl.program_id(2)
    rows = agent.to(tl.int64) * PARTS * size  # of the agents before
    theta += agent * STRIDE
    x_at += rows * D
    action_at += rows * (A if HEAD == GAUSSIAN else 1)
    params_at += rows * (2 * A if HEAD == GAUSSIAN else A)
    old_at, advantage_at = old_at + rows, advantage_at + rows
    target_at, value_at = target_at + rows, value_at + rows
    if ORDER:
        order_at += rows
    moments_at += agent * PARTS * CHUNKS * 2
    numbers_at += agent * NUMBERS
    sums_at += agent.to(tl.int64) * tl.num_programs(0) * WIDTH
    error_at += agent * tl.num_programs(0)
    if ACTOR and net == 0:
        mean, stretch = 0.0, 1.0
        if NORMALIZE:
            mean, stretch = _standard(moments_at + part * CHUNKS * 2, size, CHUNKS, CHUNK)
        _one_net(
            program, theta, x_at, action_at, old_at, params_at, advantage_at, target_at, value_at, order_at, mean,
            stretch, numbers_at, sums_at, error_at, first, size, each, LOG_STD, TOTAL, WIDTH, TILES, F, D, H, H2, A, BD,
            BH, BH2, BO, BM, R, HEAD, SURROGATE, EPSILON, BETA, ENTROPY, NORMALIZE, WEIGHT, NEAR, HUBER, ORDER,
            ACTIVATION, P,
        )  # fmt: skip
    if CRITIC and net == 1:
        _one_net(
            program, theta, x_at, action_at, old_at, params_at, advantage_at, target_at, value_at, order_at, 0.0, 1.0,
            numbers_at, sums_at, error_at, first, size, each, LOG_STD, TOTAL, WIDTH, TILES, VF, D, VH, VH2, 1, BD,
            VBH, VBH2, VBO, BM, R, -1, SURROGATE, EPSILON, BETA, ENTROPY, NORMALIZE, WEIGHT, NEAR, HUBER, ORDER,
            ACTIVATION, P,
        )  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """The loss, in the kernels' terms. Numbers are in a tensor, each at its position; -1: the loss has no such term."""

    surrogate: str | None  # None: the critic's loss alone
    epsilon: int = -1
    beta: int = -1
    entropy: int = -1
    value_weight: int = -1
    value_clip: int = -1
    huber: bool = False
    normalize: bool = False  # standardise the advantages of each minibatch
    approx_kl: bool = False  # reported besides the terms
    clip_fraction: bool = False


@dataclass(frozen=True)
class Rows:
    """What is learned from, `[B, ...]` each. `order` `[B]`: the minibatches, one after the other; None: as they are.

    If there are several agents, B counts the rows of all, one agent's after another's, and `order` those of each.
    """

    x: Tensor
    action: Tensor
    log_prob: Tensor
    params: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    order: Tensor | None


class Division(NamedTuple):
    """How the rows of a minibatch are divided: what decides in which order their gradients are added."""

    rows: int  # of a tile
    group: int  # tiles that are added one after the other, by one program or by several; 1: there are no groups
    each: int  # tiles that a program takes at least


def division(size: int, digits: int) -> Division:
    """The usual one for so many rows, for one agent as for many. `digits`: parts of a number.

    If it is one, there are no groups: Triton makes one product of a sum and a tile's product, which tensor cores
    round otherwise than a sum of two products.
    """
    rows = ROWS if size < MANY else MANY_ROWS
    tiles = triton.cdiv(size, rows)
    each = triton.cdiv(tiles, min(tiles, PROGRAMS))
    return Division(rows, GROUP if rows == ROWS and each == 1 and digits > 1 else 1, each)


class Gradients:
    """The gradients of minibatches of one size, in tensors of their own."""

    def __init__(
        self,
        theta: Tensor,
        actor: Net | None,
        critic: Net | None,
        terms: Terms,
        rows: Rows,
        parts: int,
        numbers: Tensor,
        divided: Division | None = None,
    ) -> None:
        """`theta`: all parameters. `actor` None: the critic learns alone. `numbers`: of the loss.

        Several agents learn at once if `theta` is `[agents, P]`; then each has its row of `numbers`, too. `divided`:
        instead of the usual `division`.
        """
        self.theta, self.rows, self.numbers, self.terms = theta, rows, numbers, terms
        self.agents, self.parameters = theta.shape if theta.dim() == 2 else (1, len(theta))
        self.size = len(rows.x) // parts // self.agents
        self.with_actor, self.with_critic = actor is not None, critic is not None
        self.parts, self.width = parts, padded(self.parameters + SUMS)
        some = actor or critic
        assert some is not None
        self.rows_at_once, self.group, each = divided or division(self.size, some.parts)
        tiles = triton.cdiv(self.size, self.rows_at_once)
        if self.agents * (self.with_actor + self.with_critic) * tiles > FULL:
            each *= self.group
        self.tiles, self.programs = each, triton.cdiv(tiles, each)
        # What a kernel does not write stays 0: the actor's columns if the critic learns alone.
        self.sums = theta.new_zeros(self.agents, self.programs, self.width)
        self.errors = theta.new_zeros(self.agents, self.programs)
        self.moments = theta.new_zeros(self.agents, parts, CHUNKS, 2)
        self._how = self._constants(actor, critic)

    @property
    def rows_of_group(self) -> int:
        """Rows in the table of sums that are added first."""
        return 1 if self.tiles == self.group else self.group

    def _constants(self, actor: Net | None, critic: Net | None) -> dict[str, object]:
        terms, some = self.terms, actor or critic
        assert some is not None
        own, value = sizes_of(actor or some), sizes_of(critic or some)
        how: dict[str, object] = {**own, **{f"V{key}": value[key] for key in ("F", "H", "H2", "BH", "BH2", "BO")}}
        return how | {
            "HEAD": some.head,
            "LOG_STD": some.log_std,
            "TOTAL": self.parameters,
            "WIDTH": self.width,
            "STRIDE": stride_of(self.theta),
            "PARTS": self.parts,
            "NUMBERS": self.numbers.shape[-1],
            "ACTOR": self.with_actor,
            "CRITIC": self.with_critic,
            "TILES": self.tiles if self.group == 1 else 0,
            "CHUNKS": CHUNKS,
            "CHUNK": triton.cdiv(self.size, CHUNKS),
            "SURROGATE": 0 if terms.surrogate is None else SURROGATES.index(terms.surrogate),
            "EPSILON": terms.epsilon,
            "BETA": terms.beta,
            "ENTROPY": terms.entropy,
            "NORMALIZE": terms.normalize,
            "WEIGHT": terms.value_weight,
            "NEAR": terms.value_clip,
            "HUBER": terms.huber,
            "ORDER": self.rows.order is not None,
            "ACTIVATION": some.activation_code,
            "BM": self.rows_at_once,
            "R": 1 if self.group > 1 or self.rows_at_once == ROWS else self.rows_at_once,
        }

    @property
    def _order(self) -> Tensor:
        return self.rows.x if self.rows.order is None else self.rows.order

    def prepare(self) -> None:
        """Before a pass over the minibatches: the moments of their advantages."""
        if self.terms.normalize:
            chunk = triton.cdiv(self.size, CHUNKS)
            _moments[(CHUNKS, self.parts, self.agents)](
                self.rows.advantage, self._order, self.moments, self.size,
                CHUNK=chunk, BLOCK=BLOCK, ORDER=self.rows.order is not None,
            )  # fmt: skip

    def compute(self, part: int) -> None:
        """Each program's sum of the gradient over its rows of one minibatch, into `sums`."""
        rows = self.rows
        _gradients[(self.programs, self.with_actor + self.with_critic, self.agents)](
            self.theta, rows.x, rows.action, rows.log_prob, rows.params, rows.advantage, rows.target, rows.value,
            self._order, self.moments, self.numbers, self.sums, self.errors, part * self.size, self.size,
            self.tiles, part, **self._how, **LEARN,
        )  # fmt: skip
