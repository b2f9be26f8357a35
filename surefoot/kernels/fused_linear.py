"""A linear layer with its activation as one Triton kernel forward and one backward. Needs Triton, so import it late.

    h = f(x·Wᵀ + b)          dz = dh ⊙ f′,  dx = dz·W,  dW = dzᵀ·x,  db = Σ dz

Products are three products of TensorFloat-32 parts, which tensor cores compute to nearly float32's accuracy. A row goes
through the same operations at any place of any batch, in acting and in learning. Each program sums the gradient over
its own rows; these sums are added in a fixed order. How rows are divided depends on their number alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from surefoot.kernels.fused_products import FAST

MOST = 64  # inputs and outputs of a layer: wider ones are no faster than cuBLAS
ROWS = 64  # at once
PROGRAMS = 264  # that share the rows in the backward pass: two for each multiprocessor of a large GPU
PRECISIONS = {"float32": "tf32x3", "tf32": "tf32", "bf16": "tf32"}  # Triton's names
FORWARD, BACKWARD = {"num_warps": 4}, {"num_warps": 4, "num_stages": 1}  # how Triton divides the work
ACTIVATIONS = ("none", "tanh", "relu", "elu")  # whose slope is a function of the result
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2(x):
    """2ˣ to 2 units in the last place, as one instruction."""
    if FAST:
        found = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        found = tl.exp2(tl.minimum(x, 127.0))
    return found


@triton.jit
def _inverse(x):
    """1/x to 1 unit in the last place, as one instruction."""
    if FAST:
        found = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        found = 1.0 / x
    return found


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr):
    h = z
    if ACTIVATION == 1:
        h = 1.0 - 2.0 * _inverse(1.0 + _exp2(z * (2.0 * LOG2_E)))  # within 2e-7; right at ±∞, where 2ˣ is 0 or ∞
    if ACTIVATION == 2:
        h = tl.maximum(z, 0.0)
    if ACTIVATION == 3:
        h = tl.where(z > 0.0, z, _exp2(tl.minimum(z, 0.0) * LOG2_E) - 1.0)
    return h


@triton.jit
def _to_z(dh, h, ACTIVATION: tl.constexpr):
    """The gradient before the activation, from that of its result h."""
    dz = dh
    if ACTIVATION == 1:
        dz = dh * (1.0 - h * h)
    if ACTIVATION == 2:
        dz = tl.where(h > 0.0, dh, 0.0)
    if ACTIVATION == 3:
        dz = tl.where(h > 0.0, dh, dh * (h + 1.0))
    return dz


@triton.jit
def _forward(
    x_at, w_at, b_at, h_at, rows,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.arange(0, BN)
    k = tl.arange(0, BK)
    x = tl.load(x_at + row[:, None] * K + k[None, :], mask=(row[:, None] < rows) & (k[None, :] < K), other=0.0)
    w = tl.load(w_at + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
    z = tl.dot(x, w, input_precision=PRECISION)
    z += tl.load(b_at + n, mask=n < N, other=0.0)[None, :]
    h = _activated(z, ACTIVATION)
    tl.store(h_at + row[:, None] * N + n[None, :], h, mask=(row[:, None] < rows) & (n[None, :] < N))


@triton.jit
def _backward(
    x_at, w_at, h_at, dh_at, dx_at, sums_at, rows,
    K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    INPUTS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    n = tl.arange(0, BN)
    k = tl.arange(0, BK)
    w = tl.load(w_at + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
    dw = tl.zeros((BN, BK), tl.float32)
    db = tl.zeros((BN,), tl.float32)
    for tile in range(TILES):
        row = ((program * TILES + tile) * BM + tl.arange(0, BM)).to(tl.int64)
        out = (row[:, None] < rows) & (n[None, :] < N)
        into = (row[:, None] < rows) & (k[None, :] < K)
        x = tl.load(x_at + row[:, None] * K + k[None, :], mask=into, other=0.0)
        h = tl.load(h_at + row[:, None] * N + n[None, :], mask=out, other=0.0)
        dh = tl.load(dh_at + row[:, None] * N + n[None, :], mask=out, other=0.0)
        dz = _to_z(dh, h, ACTIVATION)
        dw = tl.dot(tl.trans(dz), x, dw, input_precision=PRECISION)
        db += tl.sum(dz, 0)
        if INPUTS:
            tl.store(dx_at + row[:, None] * K + k[None, :], tl.dot(dz, w, input_precision=PRECISION), mask=into)
    own = sums_at + program * (N * K + N)
    tl.store(own + n[:, None] * K + k[None, :], dw, mask=(n[:, None] < N) & (k[None, :] < K))
    tl.store(own + N * K + n, db, mask=n < N)


def _padded(size: int) -> int:
    """The power of two that holds this many, at least the 16 that a product needs."""
    return max(16, triton.next_power_of_2(size))


def _shape(weight: Tensor, precision: str) -> dict[str, Any]:
    outputs, inputs = weight.shape
    assert max(outputs, inputs) <= MOST, f"a layer of {inputs} inputs and {outputs} outputs is too wide"
    return {
        "K": inputs,
        "N": outputs,
        "BK": _padded(inputs),
        "BN": _padded(outputs),
        "BM": ROWS,
        "PRECISION": PRECISIONS[precision],
    }


def forward(x: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str = "float32") -> Tensor:
    """f(x·Wᵀ + b) of rows `[B, K]`, `[B, N]`."""
    h = torch.empty((len(x), len(weight)), dtype=torch.float32, device=x.device)
    shape = _shape(weight, precision)
    if len(x):
        grid = (triton.cdiv(len(x), ROWS),)
        _forward[grid](x, weight, bias, h, len(x), **shape, ACTIVATION=ACTIVATIONS.index(activation), **FORWARD)
    return h


def backward(
    x: Tensor, weight: Tensor, h: Tensor, dh: Tensor, activation: str, precision: str = "float32", *, inputs: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """(dx if asked for, dW, db) from the layer's inputs, its results and their gradient."""
    outputs, width = weight.shape
    shape, tiles = _shape(weight, precision), triton.cdiv(max(1, len(x)), ROWS)
    programs = min(tiles, PROGRAMS)
    dx = torch.empty_like(x) if inputs else None
    sums = torch.empty((programs, outputs * width + outputs), dtype=torch.float32, device=x.device)
    how = {**shape, "ACTIVATION": ACTIVATIONS.index(activation), "INPUTS": inputs}
    into = x if dx is None else dx
    _backward[(programs,)](x, weight, h, dh, into, sums, len(x), TILES=triton.cdiv(tiles, programs), **how, **BACKWARD)
    total = sums.sum(0)
    return dx, total[: outputs * width].view(outputs, width), total[outputs * width :]


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    activation: str
    precision: str
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class FusedLinear(torch.autograd.Function):
    """The layer for autograd. It has no second derivative."""

    @staticmethod
    def forward(ctx: Kept, x: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str) -> Tensor:
        h = forward(x, weight, bias, activation, precision)
        ctx.save_for_backward(x, weight, h)
        ctx.activation, ctx.precision = activation, precision
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, dh: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, h = ctx.saved_tensors
        how = (ctx.activation, ctx.precision)
        return *backward(x, weight, h, dh.contiguous(), *how, inputs=ctx.needs_input_grad[0]), None, None


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str = "float32") -> Tensor:
    """f(x·Wᵀ + b) of rows `[..., K]`, differentiable once."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    result: Tensor = FusedLinear.apply(flat, weight, bias, activation, precision)
    return result.reshape(*x.shape[:-1], len(weight))


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """The same in PyTorch: the reference."""
    z = torch.nn.functional.linear(x, weight, bias)
    functions = {"none": lambda z: z, "tanh": torch.tanh, "relu": torch.relu, "elu": torch.nn.functional.elu}
    return functions[activation](z)
