"""Box actions: a Gaussian that is clipped or squashed into the bounds, or a Beta between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from surefoot.errors import UsageError
from surefoot.kernels.heads import BETA, GAUSSIAN, TANH_GAUSSIAN, KernelPart
from surefoot.math.constants import LOG_STD_RANGE
from surefoot.math.distributions import Beta, DiagGaussian, TanhGaussian
from surefoot.math.fixed import fixed
from surefoot.policies.actions.model import MeanRange, Sender, SingleAction, torch_dtype

if TYPE_CHECKING:
    from surefoot.types import Array


class BoxActions(SingleAction):
    """`Box`: a diagonal Gaussian. The raw draw is stored and scored; the env receives it clipped to its bounds."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, "clip")
        self.env_shape = space.shape
        size = math.prod(space.shape)
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise, self.num_gaussian = 2 * size, size, size
        self.log_std_slices, self.gaussian_noise = (slice(size, 2 * size),), (slice(0, size),)
        self.low, self.high, self.env_dtype = space.low, space.high, space.dtype
        self.bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())
        self.num_clipped = size if self.bounded else 0
        self.kernel_parts: tuple[KernelPart, ...] = (KernelPart(GAUSSIAN, size),)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return _gaussian_params(outputs, log_std, mean_range)

    def gaussian_bounds(self) -> tuple[Array, Array]:
        return self.low.astype(np.float32).reshape(-1), self.high.astype(np.float32).reshape(-1)

    def distribution(self, params: Tensor) -> DiagGaussian:
        return DiagGaussian.from_params(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return DiagGaussian.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return DiagGaussian.draw(params, noise)

    def tensor_sender(self, device: torch.device) -> Sender:
        shape, kind, (low, high) = self.env_shape, torch_dtype(self.env_dtype), _on(device, self.low, self.high)
        return lambda action: action.reshape(-1, *shape).clamp(low, high).to(kind)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        if not self.bounded:
            return None
        low, high = (fixed(tuple(side.flat), action.dtype, action.device) for side in (self.low, self.high))
        return ((action < low) | (action > high)).float().mean(-1)


class TanhBoxActions(SingleAction):
    """A bounded `Box`: u of a diagonal Gaussian is stored; the env receives centre + half·tanh(u)."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.env_dtype = *_finite_bounds(space, "tanh"), space.dtype
        super().__init__(space, "tanh")
        self.centre, self.half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        self.log_half = float(np.log(self.half).sum())
        self.env_shape, size = space.shape, self.low.size
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise, self.num_gaussian = 2 * size, size, size
        self.log_std_slices, self.gaussian_noise = (slice(size, 2 * size),), (slice(0, size),)
        self.kernel_parts: tuple[KernelPart, ...] = (KernelPart(TANH_GAUSSIAN, size, self.log_half),)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return _gaussian_params(outputs, log_std, mean_range)

    def gaussian_bounds(self) -> tuple[Array, Array]:
        """None: u is free."""
        return np.full(self.shape, -np.inf, np.float32), np.full(self.shape, np.inf, np.float32)

    def distribution(self, params: Tensor) -> TanhGaussian:
        return TanhGaussian.from_params(params, self.log_half)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return TanhGaussian.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return TanhGaussian.draw(params, noise)

    def tensor_sender(self, device: torch.device) -> Sender:
        shape, kind = self.env_shape, torch_dtype(self.env_dtype)
        low, high, centre, half = _on(device, self.low, self.high, self.centre, self.half)

        def send(action: Tensor) -> Tensor:
            squashed = action.reshape(-1, *shape).double().tanh()
            return (centre + half * squashed).clamp(low, high).to(kind)

        return send


class BetaBoxActions(SingleAction):
    """A bounded `Box`: x of a Beta on (0, 1) is stored; the env receives low + (high − low)·x."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        self.low, self.high, self.env_dtype = *_finite_bounds(space, "beta"), space.dtype
        super().__init__(space, "beta")
        self.log_width = float((np.log(self.high / 2 - self.low / 2) + math.log(2.0)).sum())
        self.env_shape, size = space.shape, self.low.size
        self.shape: tuple[int, ...] = (size,)
        self.num_params, self.num_noise = 2 * size, Beta.noise_size(2 * size)
        self.kernel_parts: tuple[KernelPart, ...] = (KernelPart(BETA, size, self.log_width),)

    def distribution(self, params: Tensor) -> Beta:
        return Beta(params, self.log_width)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Beta.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Beta.draw(params, noise)

    def tensor_sender(self, device: torch.device) -> Sender:
        shape, kind, (low, high) = self.env_shape, torch_dtype(self.env_dtype), _on(device, self.low, self.high)

        def send(action: Tensor) -> Tensor:
            x = action.reshape(-1, *shape).double()
            return (low * (1.0 - x) + high * x).clamp(low, high).to(kind)

        return send


def _on(device: torch.device, *constants: Array) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(np.array(constant)).to(device) for constant in constants)


def _finite_bounds(space: spaces.Box, bounds: str) -> tuple[Array, Array]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UsageError(
            f"action_bounds={bounds} needs a Box bounded on all sides, but this env has {space}; use action_bounds=clip"
        )
    if not (low < high).all():
        raise UsageError(
            f"action_bounds={bounds} needs low < high in every dimension, but this env has {space}; "
            "use action_bounds=clip"
        )
    return low, high


def _gaussian_params(outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None) -> Tensor:
    """Concatenate mean and log std; see `ActionModel.params_from`."""
    if log_std is not None:
        mean, log_std = outputs, log_std.clamp(*LOG_STD_RANGE).expand_as(outputs)
    else:
        mean, raw = outputs.chunk(2, dim=-1)
        log_std = F.softplus(raw).clamp(min=math.exp(LOG_STD_RANGE[0])).log()
    if mean_range is not None:
        mean = mean_range[0] + mean_range[1] * torch.tanh(mean)
    return torch.cat([mean, log_std], dim=-1)
