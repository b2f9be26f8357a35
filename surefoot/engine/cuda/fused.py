"""Whether Triton kernels can compute the linear layers of a policy."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surefoot.engine.cuda.networks import FusedNetworks, widest
from surefoot.engine.cuda.whole_nets import whole_nets
from surefoot.engine.native.describe import NotServed, parts_to_compile
from surefoot.engine.precision import SLACK
from surefoot.policies.networks import PlainNetworks

if TYPE_CHECKING:
    from surefoot.engine.names import Precision
    from surefoot.policies.actor_critic import ActorCritic

ACTIVATIONS = ("tanh", "relu", "elu")  # as in `kernels.fused_linear`, which only Triton can import
CLOSE = 1e-4  # to PyTorch's results and gradients; products of TensorFloat-32 parts are within 1e-6
ROWS = 300  # on which they are compared


def not_fused(policy: ActorCritic) -> str | None:
    """Why Triton does not compute the linear layers of this policy; None if it can, as far as can be told."""
    if policy.config.layer_norm:
        return "its layers are normalised"
    try:
        widest(policy)
    except NotServed as reason:
        return str(reason)
    if policy.config.activation not in ACTIVATIONS:
        return f"{policy.config.activation} is not among its activations"
    return None if find_spec("triton") is not None else "Triton is not installed"


def fused_networks(policy: ActorCritic, theta: Tensor, precision: Precision = "float32") -> FusedNetworks | str:
    """The networks by which Triton computes the policy's MLPs, whose parameters are in `theta`, or why it does not."""
    reason = not_fused(policy)
    if reason is not None:
        return reason
    try:
        error = disagreement(policy, precision)
    except Exception as broken:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
        return f"Triton failed: {str(broken).strip().partition(chr(10))[0]}"
    if error < CLOSE * SLACK[precision]:
        whole = whole_nets(policy, theta, precision)
        return FusedNetworks(policy, None if isinstance(whole, str) else whole, precision)
    return f"Triton's results are off by {error:.1g} here"


def disagreement(policy: ActorCritic, precision: Precision = "float32") -> float:
    """How far results and gradients are from PyTorch's, relative to their size, on random features."""
    first = (policy.trunk or policy.actor).layers[0]
    assert isinstance(first, nn.Linear)
    generator = torch.Generator(policy.device).manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32, device=policy.device)

    features, weight = draw(ROWS, first.in_features), draw(ROWS, policy.actor.head.out_features)
    learned = policy.encoder is not None or policy.memory is not None
    inputs = features.requires_grad_() if learned else features
    kinds = (FusedNetworks(policy, None, precision), PlainNetworks(policy))
    found = [_results(kind, policy, inputs, weight) for kind in kinds]
    return max(float((one - other).norm() / other.norm().clamp(min=1e-6)) for one, other in zip(*found, strict=True))


def _results(networks: PlainNetworks, policy: ActorCritic, inputs: Tensor, weight: Tensor) -> list[Tensor]:
    outputs, value = networks.both(inputs)
    total = (outputs * weight).sum() + (0.0 if value is None else (value * weight[:, 0]).sum())
    leaves: list[Tensor] = [p for part in parts_to_compile(policy) for p in part.parameters()]
    leaves += [inputs] if inputs.requires_grad else []
    results = [outputs.detach(), *([] if value is None else [value.detach()])]
    return [*results, *torch.autograd.grad(total, leaves)]
