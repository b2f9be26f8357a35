"""float32 layers on the CPU whose initial weights come from a given generator.

PyTorch's constructors draw from its global generator, which other threads and the user's code share. These draw the
same numbers, in the same order, from `generator`; None is the global one. No default device or dtype changes them.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from surefoot.math.constants import LAYER_NORM_EPS


class Undrawn:
    """Leaves a layer's memory as it was found. (On the device `meta` nothing is drawn either, but PyTorch imports SymPy
    for that: a second of every start.)
    """

    def reset_parameters(self) -> None:
        pass


class Linear(Undrawn, nn.Linear):
    pass


class Conv2d(Undrawn, nn.Conv2d):
    pass


class Embedding(Undrawn, nn.Embedding):
    pass


class GRU(Undrawn, nn.GRU):
    pass


class LSTM(Undrawn, nn.LSTM):
    pass


def linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    layer = Linear(inputs, outputs, device="cpu", dtype=torch.float32)
    _draw_product(layer, generator)
    return layer


def convolution(
    channels: int,
    outputs: int,
    size: int,
    generator: torch.Generator | None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int = 0,
) -> nn.Conv2d:
    layer = Conv2d(channels, outputs, size, stride, padding, device="cpu", dtype=torch.float32)
    _draw_product(layer, generator)
    return layer


def embedding(choices: int, size: int, generator: torch.Generator | None) -> nn.Embedding:
    table = Embedding(choices, size, device="cpu", dtype=torch.float32)
    nn.init.normal_(table.weight, generator=generator)
    return table


def recurrent(kind: type[GRU | LSTM], inputs: int, hidden: int, generator: torch.Generator | None) -> nn.GRU | nn.LSTM:
    net = kind(inputs, hidden, device="cpu", dtype=torch.float32)
    bound = 1.0 / math.sqrt(hidden)
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return net


def layer_norm(size: int) -> nn.LayerNorm:
    """A layer norm with gain 1 and bias 0; nothing is drawn."""
    return nn.LayerNorm(size, eps=LAYER_NORM_EPS, device="cpu", dtype=torch.float32)


def _draw_product(layer: nn.Linear | nn.Conv2d, generator: torch.Generator | None) -> None:
    """Weights and biases from U(−1/√n, 1/√n), where n is the number of inputs per output."""
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5.0), generator=generator)
    assert layer.bias is not None
    inputs = layer.weight[0].numel()
    bound = 1.0 / math.sqrt(inputs) if inputs else 0.0
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
