"""Discrete, MultiDiscrete and MultiBinary actions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.kernels.heads import BERNOULLI, CATEGORICAL, KernelPart
from surefoot.math.distributions import Bernoulli, Categorical, MultiCategorical, mask_logits
from surefoot.policies.actions.model import Sender, SingleAction, torch_dtype

if TYPE_CHECKING:
    from surefoot.types import Array


class DiscreteActions(SingleAction):
    """`Discrete(n, start)`: a Categorical over 0..n−1; `start` is added for the env."""

    shape: tuple[int, ...] = ()
    dtype = torch.int64

    def __init__(self, space: spaces.Discrete) -> None:
        super().__init__(space)
        self.num_params, self.start = int(space.n), int(space.start)
        self.num_noise = self.mask_size = self.num_params
        self.env_dtype = None if space.dtype == np.int64 else space.dtype
        self.kernel_parts: tuple[KernelPart, ...] = (KernelPart(CATEGORICAL, self.num_params),)

    def distribution(self, params: Tensor) -> Categorical:
        return Categorical(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Categorical.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Categorical.draw(params, noise)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return mask_logits(params, mask)

    def tensor_sender(self, device: torch.device) -> Sender:
        start, kind = self.start, torch.int64 if self.env_dtype is None else torch_dtype(self.env_dtype)
        return lambda action: (action + start).to(kind)

    def to_each(self, action: Array) -> list[object]:
        return list(self.to_env(action))  # NumPy integers, like the space's own samples


class MultiDiscreteActions(SingleAction):
    """`MultiDiscrete(nvec, start)`: a Categorical for each variable, stored flat; `start` is added for the env."""

    dtype = torch.int64

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        super().__init__(space)
        self.env_shape, self.env_dtype = space.shape, space.dtype
        self.sizes = tuple(int(n) for n in space.nvec.reshape(-1))
        self.start = space.start.astype(np.int64)
        self.num_params = self.num_noise = self.mask_size = sum(self.sizes)
        self.shape: tuple[int, ...] = (len(self.sizes),)
        self.kernel_parts: tuple[KernelPart, ...] = tuple(KernelPart(CATEGORICAL, size) for size in self.sizes)
        self._begins = np.cumsum([0, *self.sizes[:-1]])

    def distribution(self, params: Tensor) -> MultiCategorical:
        return MultiCategorical(params, self.sizes)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return MultiCategorical.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return MultiCategorical.draw(params, noise, self.sizes)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return mask_logits(params, mask)

    def tensor_sender(self, device: torch.device) -> Sender:
        first, shape = torch.from_numpy(np.array(self.start)).to(device), self.env_shape
        kind = torch_dtype(self.env_dtype)
        return lambda action: (action.reshape(-1, *shape) + first).to(kind)


class MultiBinaryActions(SingleAction):
    """`MultiBinary(shape)`: independent bits, stored flat. There is no mask: both values are always legal."""

    dtype = torch.int64

    def __init__(self, space: spaces.MultiBinary) -> None:
        super().__init__(space)
        self.env_shape, self.env_dtype = space.shape, space.dtype
        self.num_params = self.num_noise = math.prod(space.shape)
        self.shape: tuple[int, ...] = (self.num_params,)
        self.kernel_parts: tuple[KernelPart, ...] = (KernelPart(BERNOULLI, self.num_params),)

    def distribution(self, params: Tensor) -> Bernoulli:
        return Bernoulli(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Bernoulli.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Bernoulli.draw(params, noise)

    def tensor_sender(self, device: torch.device) -> Sender:
        shape, kind = self.env_shape, torch_dtype(self.env_dtype)
        return lambda action: action.reshape(-1, *shape).to(kind)
