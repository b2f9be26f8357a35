"""Lets Triton kernels compute the linear layers of a policy, if they can."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from surefoot.engine.native.describe import NotServed, parts_to_compile

if TYPE_CHECKING:
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.policies.mlp import MLP

MOST_WIDTH, ACTIVATIONS = 64, ("tanh", "relu", "elu")  # as in `kernels.fused_linear`, which only Triton can import
CLOSE = 1e-4  # to PyTorch's results and gradients; products of TensorFloat-32 parts are within 1e-6
ROWS = 300  # on which they are compared


class FusedMLPs:
    """The actor's outputs and V from features, for `ActorCritic.compiled`."""

    def __init__(self, policy: ActorCritic, whole: WholeNets | None = None) -> None:
        """`whole`: one kernel for each net where no gradient is needed; otherwise one for each layer."""
        self.policy, self.whole = policy, whole

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.whole is not None and not torch.is_grad_enabled():
            return self.whole.outputs(features), self.whole.value(features)
        shared = self._shared(features)
        return self._run(self.policy.actor, shared), self._value(shared)

    def outputs(self, features: Tensor) -> Tensor:
        if self.whole is not None and not torch.is_grad_enabled():
            return self.whole.outputs(features)
        return self._run(self.policy.actor, self._shared(features))

    def value(self, features: Tensor) -> Tensor | None:
        if self.whole is not None and not torch.is_grad_enabled():
            return self.whole.value(features)
        return self._value(self._shared(features))

    def _shared(self, features: Tensor) -> Tensor:
        return features if self.policy.trunk is None else self._run(self.policy.trunk, features)

    def _value(self, shared: Tensor) -> Tensor | None:
        return self._run(self.policy.critic, shared).squeeze(-1) if self.policy.has_critic else None

    def _run(self, mlp: MLP, x: Tensor) -> Tensor:
        from surefoot.kernels.fused_linear import fused_linear

        last = len(mlp.layers) - 1
        for at, layer in enumerate(mlp.layers):
            assert isinstance(layer, nn.Linear)
            activated = at < last or mlp.activate_last
            x = fused_linear(x, layer.weight, layer.bias, self.policy.config.activation if activated else "none")
        return x


def not_fused(policy: ActorCritic) -> str | None:
    """Why Triton cannot compute the linear layers of this policy; None if it can, as far as can be told."""
    try:
        layers = [layer for part in parts_to_compile(policy) for layer in part.layers]
    except NotServed as reason:
        return str(reason)
    width = max(max(layer.weight.shape) for layer in layers if isinstance(layer, nn.Linear))
    if width > MOST_WIDTH:
        return f"a layer is {width} wide; beyond {MOST_WIDTH}, cuBLAS is as fast"
    if policy.config.activation not in ACTIVATIONS:
        return f"{policy.config.activation} is not among its activations"
    return None if find_spec("triton") is not None else "Triton is not installed"


def fuse(policy: ActorCritic) -> str | None:
    """Compute the policy's MLPs by Triton kernels from now on; otherwise returns why not."""
    reason = not_fused(policy)
    if reason is None:
        try:
            error = disagreement(policy)
        except Exception as broken:  # Triton compiles at run time: no compiler, an old GPU, a bug of its own
            return f"Triton failed: {str(broken).strip().partition(chr(10))[0]}"
        if error < CLOSE:
            policy.compiled = FusedMLPs(policy)
        else:
            reason = f"Triton's results are off by {error:.1g} here"
    return reason


def disagreement(policy: ActorCritic) -> float:
    """How far results and gradients are from PyTorch's, relative to their size, on random features."""
    first = (policy.trunk or policy.actor).layers[0]
    assert isinstance(first, nn.Linear)
    generator = torch.Generator(policy.device).manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32, device=policy.device)

    features, weight = draw(ROWS, first.in_features), draw(ROWS, policy.actor.head.out_features)
    learned = policy.encoder is not None or policy.memory is not None
    inputs = features.requires_grad_() if learned else features
    found = [_results(kind, policy, inputs, weight) for kind in (FusedMLPs(policy), _Plain(policy))]
    return max(float((one - other).norm() / other.norm().clamp(min=1e-6)) for one, other in zip(*found, strict=True))


class _Plain(FusedMLPs):
    def _run(self, mlp: MLP, x: Tensor) -> Tensor:
        result: Tensor = mlp(x)
        return result


def _results(mlps: FusedMLPs, policy: ActorCritic, inputs: Tensor, weight: Tensor) -> list[Tensor]:
    outputs, value = mlps(inputs)
    total = (outputs * weight).sum() + (0.0 if value is None else (value * weight[:, 0]).sum())
    leaves: list[Tensor] = [p for part in parts_to_compile(policy) for p in part.parameters()]
    leaves += [inputs] if inputs.requires_grad else []
    results = [outputs.detach(), *([] if value is None else [value.detach()])]
    return [*results, *torch.autograd.grad(total, leaves)]
