"""The parts of fused kernels: an MLP of up to two hidden layers, and what its head says of an action.

Kernels that act, measure and learn are made of these same functions, so that they agree to the bit. Import it late: it
needs Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from surefoot.kernels.agents import stride_of
from surefoot.kernels.fused_linear import ACTIVATIONS, MOST, _activated, _padded
from surefoot.kernels.fused_products import _parts, _product

if TYPE_CHECKING:
    from surefoot.kernels.description import Linear

CATEGORICAL, GAUSSIAN = tl.constexpr(0), tl.constexpr(1)  # heads; -1 is a critic's
HALF_LOG_2PI = tl.constexpr(0.9189385332046727)
LEAST_LOG_STD, MOST_LOG_STD = tl.constexpr(-20.0), tl.constexpr(5.0)  # `math.constants.LOG_STD_RANGE`
NEVER = tl.constexpr(-1e30)  # the logit of a choice that does not exist
ROWS = 16  # rows of a tile: the least that a product takes
MANY, MANY_ROWS = 4096, 64  # from so many rows on, tiles have so many: then there is work for all multiprocessors
PROGRAMS = 528  # that share the rows where nothing is learned
LOOK, LOOK_AT_MANY = {"num_warps": 2, "num_stages": 1}, {"num_warps": 4, "num_stages": 1}


class Weights(NamedTuple):
    """Where an MLP's weights are in the vector of all parameters, and their sizes. `inner` 0: one hidden layer."""

    first: int
    inputs: int
    hidden: int
    inner: int
    outputs: int


def weights_of(layers: Sequence[Linear]) -> Weights | None:
    """None: it has none or more than two hidden layers, a wider one than fused kernels take, or gaps between them."""
    expected = layers[0].weight
    for layer in layers:
        if (layer.weight, layer.bias) != (expected, expected + layer.inputs * layer.outputs):
            return None
        expected = layer.bias + layer.outputs
    if len(layers) not in (2, 3) or max(max(layer.inputs, layer.outputs) for layer in layers) > MOST:
        return None
    inner = layers[1].outputs if len(layers) == 3 else 0
    return Weights(layers[0].weight, layers[0].inputs, layers[0].outputs, inner, layers[-1].outputs)


@dataclass(frozen=True)
class Net:
    """An actor (head 0 or 1) or a critic (head -1) as kernels know it. `log_std`: where it is among the parameters.

    `parts`: of a number in products (`fused_products`).
    """

    weights: Weights
    activation: str
    head: int
    log_std: int = 0
    parts: int = 3

    @property
    def activation_code(self) -> int:
        return ACTIVATIONS.index(self.activation)

    @property
    def actions(self) -> int:
        """Numbers of a stored action."""
        return self.weights.outputs if self.head == GAUSSIAN.value else 1

    @property
    def params(self) -> int:
        """Numbers that describe the distribution of an action."""
        return self.weights.outputs * (2 if self.head == GAUSSIAN.value else 1)


@triton.jit
def _load_layer(at, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, P: tl.constexpr):
    """(the parts of Wᵀ `[BK, BN]`, b `[BN]`)."""
    k = tl.arange(0, BK)
    n = tl.arange(0, BN)
    w = tl.load(at + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
    return _parts(w, P), tl.load(at + K * N + n, mask=n < N, other=0.0)


@triton.jit
def _layer(x, w, b, ACTIVATION: tl.constexpr, P: tl.constexpr):
    """f(x·Wᵀ + b), from the parts of x and Wᵀ."""
    return _activated(_product(x, w, P) + b[None, :], ACTIVATION)


@triton.jit
def _load_net(
    theta, F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, H2: tl.constexpr, A: tl.constexpr, BD: tl.constexpr,
    BH: tl.constexpr, BH2: tl.constexpr, BO: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The layers of an MLP whose parameters begin at F. If one is hidden, the second is not used."""
    SECOND: tl.constexpr = F + D * H + H
    LAST: tl.constexpr = SECOND + (H * H2 + H2 if H2 > 0 else 0)
    w, b = _load_layer(theta + F, D, H, BD, BH, P)
    w3, b3 = _load_layer(theta + LAST, H2 if H2 > 0 else H, A, BH2, BO, P)
    w2, b2 = w, b
    if H2 > 0:
        w2, b2 = _load_layer(theta + SECOND, H, H2, BH, BH2, P)
    return w, b, w2, b2, w3, b3


@triton.jit
def _forwards(x, w, b, w2, b2, w3, b3, H2: tl.constexpr, ACTIVATION: tl.constexpr, P: tl.constexpr):
    """(the first hidden layer and its parts, the last and its parts, the outputs), from the parts of x."""
    h = _layer(x, w, b, ACTIVATION, P)
    inner = _parts(h, P)
    top, last = h, inner
    if H2 > 0:
        top = _layer(inner, w2, b2, ACTIVATION, P)
        last = _parts(top, P)
    return h, inner, top, last, _layer(last, w3, b3, 0, P)


@triton.jit
def _log_probs(out, A: tl.constexpr, BO: tl.constexpr):
    """log softmax over the first A columns."""
    o = tl.arange(0, BO)
    logits = tl.where((o < A)[None, :], out, NEVER)
    logits -= tl.max(logits, 1)[:, None]
    return logits - tl.log(tl.sum(tl.exp(logits), 1))[:, None]


@triton.jit
def _log_prob(out, log_std, action, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    """log π of the actions: `[BM]` choices, or `[BM, BO]` numbers with `log_std` `[1, BO]` or `[BM, BO]`."""
    o = tl.arange(0, BO)
    if HEAD == CATEGORICAL:
        found = tl.sum(tl.where(o[None, :] == action[:, None], _log_probs(out, A, BO), 0.0), 1)
    else:
        z = (action - out) * tl.exp(-log_std)
        found = -tl.sum(tl.where((o < A)[None, :], 0.5 * z * z + log_std + HALF_LOG_2PI, 0.0), 1)
    return found


@triton.jit
def _kl(out, log_std, old, old_log_std, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    """KL(old‖new) of every row, from the head's outputs and the old parameters."""
    o = tl.arange(0, BO)
    if HEAD == CATEGORICAL:
        before = _log_probs(old, A, BO)
        each = tl.exp(before) * (before - _log_probs(out, A, BO))
    else:
        squares = tl.exp(2.0 * (old_log_std - log_std))
        distance = (old - out) * tl.exp(-log_std)
        each = log_std - old_log_std + 0.5 * (squares + distance * distance - 1.0)
    return tl.sum(tl.where((o < A)[None, :], each, 0.0), 1)


@triton.jit
def _load_action(action_at, row, inside, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    o = tl.arange(0, BO)
    if HEAD == CATEGORICAL:
        found = tl.load(action_at + row, mask=inside, other=0)
    else:
        found = tl.load(action_at + row[:, None] * A + o[None, :], mask=inside[:, None] & (o < A)[None, :], other=0.0)
    return found


@triton.jit
def _load_old(params_at, row, inside, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    """(logits, nothing of use) or (means, log stds)."""
    o = tl.arange(0, BO)
    mask = inside[:, None] & (o < A)[None, :]
    if HEAD == CATEGORICAL:
        first = tl.load(params_at + row[:, None] * A + o[None, :], mask=mask, other=0.0)
        second = first
    else:
        first = tl.load(params_at + row[:, None] * (2 * A) + o[None, :], mask=mask, other=0.0)
        second = tl.load(params_at + row[:, None] * (2 * A) + A + o[None, :], mask=mask, other=0.0)
    return first, second


@triton.jit
def _load_log_std(at, A: tl.constexpr, BO: tl.constexpr, HEAD: tl.constexpr):
    """`[1, BO]`, within its range; zeros if the head has none."""
    o = tl.arange(0, BO)
    found = tl.zeros((BO,), tl.float32)
    if HEAD == GAUSSIAN:
        raw = tl.load(at + o, mask=o < A, other=0.0)
        found = tl.minimum(tl.maximum(raw, LEAST_LOG_STD), MOST_LOG_STD)
    return found[None, :]


@triton.jit(do_not_specialize=["rows", "inner"])
def _look(
    theta, x_at, old_at, out_at, kl_at, rows, inner, STRIDE: tl.constexpr, log_std_at: tl.constexpr,
    F: tl.constexpr, D: tl.constexpr, H: tl.constexpr, H2: tl.constexpr, A: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BH2: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr,
    HEAD: tl.constexpr, KL: tl.constexpr, ACTIVATION: tl.constexpr, TILES: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The outputs of every row (KL 0), KL(old‖new) (1), or the last hidden layer (2).

    Each `inner` rows belong to the next agent, of which there may be one.
    """
    agent = tl.program_id(1)
    theta += agent * STRIDE
    L: tl.constexpr = H2 if H2 > 0 else H
    d = tl.arange(0, BD)
    o = tl.arange(0, BO)
    w, b, w2, b2, w3, b3 = _load_net(theta, F, D, H, H2, A, BD, BH, BH2, BO, P)
    log_std = _load_log_std(theta + log_std_at, A, BO, HEAD)
    for tile in range(TILES):
        own = (tile * tl.num_programs(0) + tl.program_id(0)) * BM + tl.arange(0, BM)
        inside = own < rows
        block = own // inner  # in 32 bits, because this division takes long in 64
        row = (block.to(tl.int64) * tl.num_programs(1) + agent) * inner + (own - block * inner)
        x = tl.load(x_at + row[:, None] * D + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
        _, _, top, _, out = _forwards(_parts(x, P), w, b, w2, b2, w3, b3, H2, ACTIVATION, P)
        if KL == 2:
            unit = tl.arange(0, BH2)
            tl.store(out_at + row[:, None] * L + unit[None, :], top, mask=inside[:, None] & (unit < L)[None, :])
        elif KL == 1:
            old, old_log_std = _load_old(old_at, row, inside, A, BO, HEAD)
            tl.store(kl_at + row, _kl(out, log_std, old, old_log_std, A, BO, HEAD), mask=inside)
        else:
            tl.store(out_at + row[:, None] * A + o[None, :], out, mask=inside[:, None] & (o < A)[None, :])


def sizes_of(net: Net) -> dict[str, int | str]:
    """A net's sizes, as kernels name them."""
    weights = net.weights
    last = weights.inner or weights.hidden
    return {
        "F": weights.first,
        "D": weights.inputs,
        "H": weights.hidden,
        "H2": weights.inner,
        "A": weights.outputs,
        "BD": _padded(weights.inputs),
        "BH": _padded(weights.hidden),
        "BH2": _padded(last),
        "BO": _padded(weights.outputs),
        "P": net.parts,
    }


def outputs(theta: Tensor, net: Net, x: Tensor, inner: int = 1) -> Tensor:
    """What a net's last layer says of rows `[B, D]`, `[B, A]`.

    `theta` `[P]`, or `[agents, P]`: then the first `inner` rows belong to the first agent, the next ones to the second,
    and after the last agent it is the first one's turn again.
    """
    found = torch.empty((len(x), net.weights.outputs), dtype=torch.float32, device=x.device)
    _looked(theta, net, x, theta, found, found, inner, what=0)
    return found


def hidden(theta: Tensor, net: Net, x: Tensor, inner: int = 1) -> Tensor:
    """What a net's last layer is given of rows `[B, D]`, `[B, H]`. `theta` and `inner`: as for `outputs`."""
    width = net.weights.inner or net.weights.hidden
    found = torch.empty((len(x), width), dtype=torch.float32, device=x.device)
    _looked(theta, net, x, theta, found, found, inner, what=2)
    return found


def kl_from(theta: Tensor, net: Net, x: Tensor, params: Tensor, inner: int = 1) -> Tensor:
    """KL(old‖new) of rows `[B, D]` with old parameters `[B, A]`, `[B]`. `theta` and `inner`: as for `outputs`."""
    found = torch.empty(len(x), dtype=torch.float32, device=x.device)
    _looked(theta, net, x, params, found, found, inner, what=1)
    return found


def _looked(
    theta: Tensor, net: Net, x: Tensor, old: Tensor, out: Tensor, kl_out: Tensor, inner: int, *, what: int
) -> None:
    agents = len(theta) if theta.dim() == 2 else 1
    rows = len(x) // agents  # of each agent
    if rows:
        size = ROWS if rows < MANY else MANY_ROWS
        tiles = triton.cdiv(rows, size)
        # A power of two, so that batches of most sizes need no kernel of their own.
        each = triton.next_power_of_2(triton.cdiv(tiles, PROGRAMS))
        _look[(triton.cdiv(tiles, each), agents)](
            theta, x, old, out, kl_out, rows, inner, STRIDE=stride_of(theta), log_std_at=net.log_std,
            **sizes_of(net), BM=size, TILES=each, HEAD=net.head, KL=what, ACTIVATION=net.activation_code,
            **(LOOK if size == ROWS else LOOK_AT_MANY),
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _score(
    params_at, action_at, found_at, rows,
    A: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    inside = row < rows
    out, log_std = _load_old(params_at, row, inside, A, BO, HEAD)
    action = _load_action(action_at, row, inside, A, BO, HEAD)
    tl.store(found_at + row, _log_prob(out, log_std, action, A, BO, HEAD), mask=inside)


def log_prob(head: int, outputs: int, params: Tensor, action: Tensor) -> Tensor:
    """log π of actions under stored parameters `[..., A]`, to the bit what the kernels that learn compute."""
    found = torch.empty(params.shape[:-1], dtype=torch.float32, device=params.device)
    rows = found.numel()
    if rows:
        how = {"A": outputs, "BO": _padded(outputs), "BM": ROWS, "HEAD": head}
        _score[(triton.cdiv(rows, ROWS),)](params.contiguous(), action.contiguous(), found, rows, **how, **LOOK)
    return found
