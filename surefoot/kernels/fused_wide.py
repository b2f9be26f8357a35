"""MLPs with layers of any width: every product is a Triton kernel that also does what follows it. Needs Triton.

    forward    h = f(x·Wᵀ + b)
    backward   dW = dzᵀ·x,  db = Σ dz,  and for the layer before:  dz′ = (dz·W) ⊙ f′(x)

`fused_linear` holds a whole layer in registers; here each program has one tile of the result. Products are those of
`fused_products`, of so many `parts` of a number. A row goes through the same operations at any place of any batch, in
acting and in learning. The gradient of the weights is summed over shares of the rows, which depend on their number
alone, and these sums are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from surefoot.kernels.fused_linear import ACTIVATIONS, _activated, _padded, _to_z
from surefoot.kernels.fused_products import _parts, _product, _transposed

HEIGHT, WIDTH = 64, 128  # of a tile, at most; two programs fit on a multiprocessor: one computes while the other loads
DEPTH = 32  # of a product that is computed at once
PROGRAMS = 264  # that share the sums over rows: two for each multiprocessor of a large GPU
LEAST_ROWS = 256  # of a share
HOW = {"num_warps": 4, "num_stages": 3}  # how Triton divides the work


@triton.jit
def _tile(at, row, rows, column, columns: tl.constexpr):
    """Rows and columns of a matrix, with zeros where it has none."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(at + row[:, None].to(tl.int64) * columns + column[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["rows"])
def _forward(
    x_at, w_at, b_at, h_at, rows,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (N + BN - 1) // BN
    row = tl.program_id(0) // across * BM + tl.arange(0, BM)
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)
    z = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = _tile(x_at, row, rows, k, K)
        w = tl.trans(_tile(w_at, n, N, k, K))
        z += _product(_parts(x, P), _parts(w, P), P)  # added here, because tensor cores cut sums off
    z += tl.load(b_at + n, mask=n < N, other=0.0)[None, :]
    inside = (row < rows)[:, None] & (n < N)[None, :]
    tl.store(h_at + row[:, None].to(tl.int64) * N + n[None, :], _activated(z, ACTIVATION), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _to_inputs(
    dz_at, w_at, x_at, dx_at, rows,
    K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
    ACTIVATION: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (K + BK - 1) // BK
    row = tl.program_id(0) // across * BM + tl.arange(0, BM)
    k = tl.program_id(0) % across * BK + tl.arange(0, BK)
    dx = tl.zeros((BM, BK), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        dz = _tile(dz_at, row, rows, n, N)
        w = _tile(w_at, n, N, k, K)
        dx += _product(_parts(dz, P), _parts(w, P), P)
    if ACTIVATION:
        dx = _to_z(dx, _tile(x_at, row, rows, k, K), ACTIVATION)
    inside = (row < rows)[:, None] & (k < K)[None, :]
    tl.store(dx_at + row[:, None].to(tl.int64) * K + k[None, :], dx, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _to_weights(
    dz_at, x_at, sums_at, rows,
    K: tl.constexpr, N: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, TILES: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (K + BK - 1) // BK
    n = tl.program_id(0) // across * BN + tl.arange(0, BN)
    k = tl.program_id(0) % across * BK + tl.arange(0, BK)
    dw = tl.zeros((BN, BK), tl.float32)
    db = tl.zeros((BN,), tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(1) * TILES + tile) * BM + tl.arange(0, BM)
        dz = _tile(dz_at, row, rows, n, N)
        x = _tile(x_at, row, rows, k, K)
        dw += _product(_transposed(_parts(dz, P)), _parts(x, P), P)
        db += tl.sum(dz, 0)
    own = sums_at + tl.program_id(1).to(tl.int64) * (N * K + N)
    tl.store(own + n[:, None] * K + k[None, :], dw, mask=(n < N)[:, None] & (k < K)[None, :])
    if tl.program_id(0) % across == 0:
        tl.store(own + N * K + n, db, mask=n < N)


def forward(x: Tensor, weight: Tensor, bias: Tensor, activation: str, parts: int = 3) -> Tensor:
    """f(x·Wᵀ + b) of rows `[B, K]`, `[B, N]`."""
    outputs, inputs = weight.shape
    h = torch.empty((len(x), outputs), dtype=torch.float32, device=x.device)
    if len(x):
        width = min(WIDTH, _padded(outputs))
        grid = (triton.cdiv(len(x), HEIGHT) * triton.cdiv(outputs, width),)
        _forward[grid](
            x, weight, bias, h, len(x), K=inputs, N=outputs, BM=HEIGHT, BN=width, BK=DEPTH,
            ACTIVATION=ACTIVATIONS.index(activation), P=parts, **HOW,
        )  # fmt: skip
    return h


def to_inputs(dz: Tensor, weight: Tensor, x: Tensor, activation: str, parts: int = 3) -> Tensor:
    """(dz·W) ⊙ f′(x), where x is a result of f: the gradient before the activation of the layer before."""
    outputs, inputs = weight.shape
    dx = torch.empty_like(x)
    if len(x):
        width = min(WIDTH, _padded(inputs))
        grid = (triton.cdiv(len(x), HEIGHT) * triton.cdiv(inputs, width),)
        _to_inputs[grid](
            dz, weight, x, dx, len(x), K=inputs, N=outputs, BM=HEIGHT, BK=width, BN=DEPTH,
            ACTIVATION=ACTIVATIONS.index(activation), P=parts, **HOW,
        )  # fmt: skip
    return dx


def to_weights(dz: Tensor, x: Tensor, parts: int = 3) -> tuple[Tensor, Tensor]:
    """(dW, db) = (dzᵀ·x, Σ dz)."""
    (rows, outputs), inputs = dz.shape, x.shape[1]
    height, width = min(HEIGHT, _padded(outputs)), min(WIDTH, _padded(inputs))
    tiles = triton.cdiv(outputs, height) * triton.cdiv(inputs, width)
    shares = max(1, min(triton.cdiv(PROGRAMS, tiles), rows // LEAST_ROWS))
    each = triton.cdiv(max(1, rows), shares * DEPTH)
    sums = torch.empty((shares, outputs * inputs + outputs), dtype=torch.float32, device=x.device)
    _to_weights[(tiles, shares)](
        dz, x, sums, rows, K=inputs, N=outputs, BN=height, BK=width, BM=DEPTH, TILES=each, P=parts, **HOW
    )
    total = sums.sum(0) if shares > 1 else sums[0]
    return total[: outputs * inputs].view(outputs, inputs), total[outputs * inputs :]


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    activations: tuple[str, ...]
    parts: int
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class WideMLP(torch.autograd.Function):
    """All layers for autograd. It has no second derivative."""

    @staticmethod
    def forward(ctx: Kept, x: Tensor, activations: tuple[str, ...], parts: int, *parameters: Tensor) -> Tensor:
        """`parameters`: weight and bias of each layer."""
        weights, results = parameters[::2], [x]
        for weight, bias, activation in zip(weights, parameters[1::2], activations, strict=True):
            results.append(forward(results[-1], weight, bias, activation, parts))
        ctx.save_for_backward(*weights, *results)
        ctx.activations, ctx.parts = activations, parts
        return results[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, dh: Tensor) -> tuple[Tensor | None, ...]:
        number, parts = len(ctx.activations), ctx.parts
        weights, results = ctx.saved_tensors[:number], ctx.saved_tensors[number:]
        dz, found = slope(dh.contiguous(), results[-1], ctx.activations[-1]), list[Tensor]()
        for at in reversed(range(number)):
            found[:0] = to_weights(dz, results[at], parts)
            if at or ctx.needs_input_grad[0]:
                before = ctx.activations[at - 1] if at else "none"
                dz = to_inputs(dz, weights[at], results[at], before, parts)
        return dz if ctx.needs_input_grad[0] else None, None, None, *found


def slope(dh: Tensor, h: Tensor, activation: str) -> Tensor:
    """dh ⊙ f′, from the results h of f: for the last layer, which most nets have without an activation."""
    slopes = {"none": lambda: dh, "tanh": lambda: dh * (1.0 - h * h), "relu": lambda: dh * (h > 0.0)}
    slopes["elu"] = lambda: torch.where(h > 0.0, dh, dh * (h + 1.0))
    return slopes[activation]()


def wide_mlp(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], activations: Sequence[str], parts: int = 3) -> Tensor:
    """What layers of (weight, bias) make of rows `[..., K]`, differentiable once."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    parameters = (tensor for layer in layers for tensor in layer)
    result: Tensor = WideMLP.apply(flat, tuple(activations), parts, *parameters)
    return result.reshape(*x.shape[:-1], result.shape[-1])
