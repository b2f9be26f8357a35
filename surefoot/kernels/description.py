"""Describes a network to the kernels: its layers, its head, and their offsets in the parameter vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surefoot.kernels.handle import Tables
from surefoot.kernels.heads import HeadKind

if TYPE_CHECKING:
    from surefoot.types import Array

ACTIVATIONS = {"tanh": 0, "relu": 1, "elu": 2, "silu": 3}


@dataclass(frozen=True, slots=True)
class Linear:
    """A layer: its sizes, and the offsets of weight `[outputs, inputs]` and bias in the parameter vector."""

    inputs: int
    outputs: int
    weight: int
    bias: int
    activated: bool
    norm: tuple[int, int] | None = None  # the offsets of a layer normalisation's gain and bias


@dataclass(frozen=True, slots=True)
class HeadPart:
    """One independent part of the action's distribution and its first column among outputs, parameters, …"""

    kind: HeadKind
    size: int
    output: int
    param: int
    action: int
    noise: int
    mask: int = -1
    log_std: int = -1  # offset in the parameter vector; −1: it is a network output
    mean_range: tuple[Array, Array] | None = None
    log_scale: float = 0.0  # Σ log of the factors that scale an action to its bounds


@dataclass(frozen=True, slots=True)
class Cell:
    """A GRU or LSTM: its inputs, and the layers from input and last output to its gates (in PyTorch's order)."""

    lstm: bool
    of_input: Linear
    of_hidden: Linear


@dataclass(frozen=True, slots=True)
class Description:
    """A network and its head."""

    inputs: int  # width of the MLPs' inputs; with a memory, these are its outputs
    masks: int
    activation: str
    trunk: Sequence[Linear]
    actor: Sequence[Linear]
    critic: Sequence[Linear]
    parts: Sequence[HeadPart]
    size: int  # length of the parameter vector
    actor_size: int
    first_trained: int  # parameters before it have no optimizer
    memory: Cell | None = None

    @property
    def width(self) -> int:
        """Numbers in a row of x: the network's inputs, then the masks."""
        return (self.inputs if self.memory is None else self.memory.of_input.inputs) + self.masks

    @property
    def columns(self) -> int:
        """The number of outputs of actor and critic together."""
        return self.actor[-1].outputs + (1 if self.critic else 0)

    @property
    def num_params(self) -> int:
        """The number of parameters of the action's distribution."""
        return max((part.param + part.kind.params * part.size for part in self.parts), default=0)

    @property
    def num_dimensions(self) -> tuple[int, int]:
        """The dimensions of an action: (all, continuous ones). A choice is one dimension, whatever it chooses from."""
        sizes = [(part.kind.actions(part.size), part.kind.params > 1) for part in self.parts]
        return sum(size for size, _ in sizes), sum(size for size, continuous in sizes if continuous)

    @property
    def remembered(self) -> int:
        """Numbers of one env's memory; 0: none."""
        return 0 if self.memory is None else (2 if self.memory.lstm else 1) * self.memory.of_hidden.inputs

    def tables(self) -> Tables:
        """The description in plain numbers."""
        numbers: list[int] = [self.inputs, self.masks, ACTIVATIONS[self.activation]]
        numbers += [0, 0] if self.memory is None else [2, self.memory.lstm]
        for layer in () if self.memory is None else (self.memory.of_input, self.memory.of_hidden):
            numbers += [layer.inputs, layer.outputs, layer.weight, layer.bias]
        for chain in (self.trunk, self.actor, self.critic):
            numbers.append(len(chain))
            for layer in chain:
                numbers += [layer.inputs, layer.outputs, layer.weight, layer.bias, layer.activated]
                numbers += layer.norm or (-1, -1)
        numbers.append(len(self.parts))
        ranges: list[Array] = []
        for part in self.parts:
            numbers += [part.kind.code, part.size, part.output, part.param, part.action, part.noise, part.mask]
            numbers += [part.log_std, part.mean_range is not None]
            ranges += [np.array([part.log_scale], np.float32), *(part.mean_range or ())]
        flat = np.concatenate([np.zeros(0, np.float32), *(np.asarray(r, np.float32) for r in ranges)])
        sizes = (self.size, self.actor_size, self.first_trained, self.width, self.remembered)
        return Tables(np.asarray(numbers, np.int64), flat, *sizes)
