"""Plain layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.policies.layers import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "elu": F.elu, "silu": F.silu}


class MLP(nn.Module):
    """Linear layers with the activation between them and, for a trunk, after the last."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        *,
        activate_last: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._linears = tuple(linear(a, b, generator) for a, b in pairwise(sizes))
        self.layers = nn.ModuleList(self._linears)
        self.activation, self.activate_last = ACTIVATIONS[activation], activate_last

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        return self._linears[-1]

    def hidden(self, x: Tensor) -> Tensor:
        """The input of the last layer."""
        for layer in self._linears[:-1]:
            x = self.activation(F.linear(x, layer.weight, layer.bias))
        return x

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self._linears):  # calling a module costs as much as a small matrix product
            x = F.linear(x, layer.weight, layer.bias)
            if i < last or self.activate_last:
                x = self.activation(x)
        return x
