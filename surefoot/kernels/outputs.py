"""The compiled MLPs of a policy as one differentiable function, for use with any loss, head, memory or encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

if TYPE_CHECKING:
    from surefoot.kernels.network import Network


class CompiledMLPs:
    """features `[..., F]` → (the actor's outputs `[..., O]`, V `[...]` or None without a critic).

    `theta` is the flat vector that all `parameters` are views of; `offsets` says where each of them begins.
    """

    def __init__(self, net: Network, theta: Tensor, parameters: Sequence[nn.Parameter], offsets: Sequence[int]) -> None:
        self.net, self.theta, self.parameters, self.offsets = net, theta, parameters, offsets
        self.inputs, self.has_critic = net.description.inputs, bool(net.description.critic)

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        lead = features.shape[:-1]
        rows = features.reshape(-1, self.inputs)
        out: Tensor = _MLPs.apply(self, rows, *self.parameters)  # type: ignore[no-untyped-call]
        out = out.view(*lead, out.shape[-1])
        return (out[..., :-1], out[..., -1]) if self.has_critic else (out, None)


class Kept(FunctionCtx):
    """What autograd keeps from the forward pass for the backward pass."""

    owner: CompiledMLPs
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _MLPs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Kept, owner: CompiledMLPs, rows: Tensor, *parameters: Tensor) -> Tensor:
        rows = rows.detach().contiguous()
        ctx.owner = owner
        ctx.save_for_backward(rows)
        return owner.net.outputs(owner.theta, rows)

    @staticmethod
    def backward(ctx: Kept, d_out: Tensor) -> tuple[Tensor | None, ...]:
        owner = ctx.owner
        (rows,) = ctx.saved_tensors
        gradient = torch.empty_like(owner.theta)
        d_rows = torch.empty_like(rows) if ctx.needs_input_grad[1] else None
        owner.net.outputs_gradient(owner.theta, rows, d_out.contiguous(), gradient, d_rows)
        pieces = zip(owner.parameters, owner.offsets, strict=True)
        own = [gradient[begin : begin + p.numel()].view_as(p) for p, begin in pieces]
        return None, d_rows, *own
