"""GRU and LSTM over time in C++, with gradients. The reference is PyTorch's `nn.GRU` and `nn.LSTM`."""

from __future__ import annotations

from ctypes import byref, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load

ALIGNMENT = 64  # bytes
SIGNATURES: Signatures = {
    "recur_kept": [*[c_int64] * 4, c_void_p],
    "recur": [*[c_int64] * 4, *[c_void_p] * 8],
    "recur_back": [*[c_int64] * 4, *[c_void_p] * 10],
}


def recurrence(
    lstm: bool, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """(outputs `[L, S, H]`, final states `[S, M]`) of S sequences, from inputs × input weights, `[L, S, G·H]`.

    `state` `[S, M]` is h, followed by c for an LSTM. `weight` `[G·H, H]` and `bias` `[G·H]` are those of the hidden
    state, with gates in PyTorch's order. `start` `[L, S]` bool: the memory is reset before that step.
    """
    out, after = _Recurrence.apply(x, state, weight, bias, start, lstm)  # type: ignore[no-untyped-call]
    return out, after


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    sizes: tuple[int, int, int, int]
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Kept, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor, start: Tensor, lstm: bool
    ) -> tuple[Tensor, Tensor]:
        steps, sequences = x.shape[:2]
        hidden = weight.shape[1]
        x, state, weight, bias, start = (t.detach().contiguous() for t in (x, state, weight, bias, start))
        assert start.dtype is torch.bool
        assert start.shape == x.shape[:2]
        sizes = (int(lstm), hidden, steps, sequences)
        out, after, kept = x.new_empty(steps, sequences, hidden), torch.empty_like(state), None
        if any(ctx.needs_input_grad):
            numbers = c_int64()
            _library().recur_kept(*sizes, byref(numbers))
            kept = torch.empty(numbers.value + ALIGNMENT // 4, dtype=torch.float32, device="cpu")
            first = -kept.data_ptr() % ALIGNMENT // 4
            kept = kept[first : first + numbers.value]
            ctx.sizes = sizes
            ctx.save_for_backward(weight, bias, start, kept)
        pointers = (weight, bias, start, x, state, out, after)
        _library().recur(*sizes, *(t.data_ptr() for t in pointers), None if kept is None else kept.data_ptr())
        return out, after

    @staticmethod
    def backward(ctx: Kept, d_out: Tensor, d_after: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, start, kept = ctx.saved_tensors
        lstm, hidden, steps, sequences = ctx.sizes
        d_out, d_after = d_out.contiguous(), d_after.contiguous()
        dx = d_out.new_empty(steps, sequences, (4 if lstm else 3) * hidden)
        d_state, d_weight, d_bias = torch.empty_like(d_after), torch.empty_like(weight), torch.empty_like(bias)
        pointers = (weight, bias, start, kept, d_out, d_after, dx, d_state, d_weight, d_bias)
        _library().recur_back(*ctx.sizes, *(t.data_ptr() for t in pointers))
        return dx, d_state, d_weight, d_bias, None, None


@cache
def _library() -> Library:
    return Library(load("nn"), "sf_", SIGNATURES)
