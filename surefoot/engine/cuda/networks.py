"""A policy's MLPs and memory on a GPU: what can be recorded, and linear layers as Triton kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from surefoot.engine.native.describe import parts_to_compile
from surefoot.engine.precision import PARTS
from surefoot.policies.networks import PlainNetworks

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.engine.names import Precision
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.policies.mlp import MLP
    from surefoot.types import Context


MOST_WIDTH = 64  # of a layer that one kernel holds: `kernels.fused_linear`, which only Triton can import


def widest(policy: ActorCritic) -> int:
    """The most inputs or outputs of a layer that kernels compute."""
    layers = [layer for part in parts_to_compile(policy) for layer in part.layers]
    return max(max(layer.weight.shape) for layer in layers if isinstance(layer, nn.Linear))


class RecordedNetworks(PlainNetworks):
    """PyTorch's modules, except that the memory waits for nothing, so that it can be part of a recording."""

    whole: WholeNets | None = None  # actor and critic as one kernel each, if they are

    def recall(self, features: Tensor, context: Context) -> Tensor:
        assert self.memory is not None
        return self.memory.step_by_step(features, context)


class FusedNetworks(RecordedNetworks):
    """The same with product, bias and activation of a layer as one kernel, or all layers of a net."""

    def __init__(self, policy: ActorCritic, whole: WholeNets | None = None, precision: Precision = "float32") -> None:
        """`whole`: one kernel for each net where no gradient is needed; otherwise one for each layer."""
        super().__init__(policy)
        self.whole, self.activation, self._reference = whole, policy.config.activation, RecordedNetworks(policy)
        self.precision, self.wide = precision, widest(policy) > MOST_WIDTH

    @property
    def reference(self) -> PlainNetworks:
        return self._reference

    def shared(self, features: Tensor) -> Tensor:
        return features if self.trunk is None else self._run(self.trunk, features)

    def value_of(self, shared: Tensor) -> Tensor | None:
        return None if self.critic is None else self._run(self.critic, shared).squeeze(-1)

    def outputs(self, features: Tensor) -> Tensor:
        if self.whole is not None and not torch.is_grad_enabled():
            return self.whole.outputs(features)
        return self._run(self.actor, self.shared(features))

    def value(self, features: Tensor) -> Tensor:
        if self.whole is None or torch.is_grad_enabled():
            return super().value(features)
        value = self.whole.value(features)
        assert value is not None
        return value

    def both(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.whole is not None and not torch.is_grad_enabled():
            return self.whole.outputs(features), self.whole.value(features)
        shared = self.shared(features)
        return self._run(self.actor, shared), self.value_of(shared)

    def _run(self, mlp: MLP, x: Tensor) -> Tensor:
        last, layers, activations = len(mlp.layers) - 1, [], []
        for at, layer in enumerate(mlp.layers):
            assert isinstance(layer, nn.Linear)
            layers.append((layer.weight, layer.bias))
            activations.append(self.activation if at < last or mlp.activate_last else "none")
        if self.wide and self.precision == "tf32":  # one product of cuBLAS is faster than three of ours
            from surefoot.kernels.fused_slopes import rounded_mlp

            return rounded_mlp(x, layers, activations)
        if self.wide:
            from surefoot.kernels.fused_wide import wide_mlp

            return wide_mlp(x, layers, activations, PARTS[self.precision])
        from surefoot.kernels.fused_linear import fused_linear

        for (weight, bias), activation in zip(layers, activations, strict=True):
            x = fused_linear(x, weight, bias, activation, self.precision)
        return x
