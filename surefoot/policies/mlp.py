"""Plain layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.policies.layers import layer_norm as make_norm
from surefoot.policies.layers import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu, "silu": F.silu}


class MLP(nn.Module):
    """Linear layers with the activation between them and, for a trunk, after the last.

    With `layer_norm`, a hidden layer is activation(g·(z − mean z)/√(var z + 1e-5) + b), z = Wx + c, mean and variance
    over its units.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        *,
        activate_last: bool = False,
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._linears = tuple(linear(a, b, generator) for a, b in pairwise(sizes))
        self.layers = nn.ModuleList(self._linears)
        self.activation, self.activate_last = ACTIVATIONS[activation], activate_last
        hidden = sizes[1:] if activate_last else sizes[1:-1]
        self._norms = tuple(make_norm(size) for size in hidden) if layer_norm else ()
        self.norms = nn.ModuleList(self._norms)

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        return self._linears[-1]

    def hidden(self, x: Tensor) -> Tensor:
        """The input of the last layer."""
        for i, layer in enumerate(self._linears[:-1]):
            x = self.activate(i, F.linear(x, layer.weight, layer.bias))
        return x

    def activate(self, number: int, x: Tensor) -> Tensor:
        """The output of a hidden layer, by its number, from its linear part."""
        if self._norms:
            norm = self._norms[number]
            x = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return self.activation(x)

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self._linears):  # calling a module costs as much as a small matrix product
            x = F.linear(x, layer.weight, layer.bias)
            if i < last or self.activate_last:
                x = self.activate(i, x)
        return x
