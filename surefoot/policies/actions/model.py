"""The interface of action models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from surefoot.spaces.sending import sender

if TYPE_CHECKING:
    from surefoot.kernels.heads import KernelPart
    from surefoot.types import Array, Distribution, GymSpace

Sender: TypeAlias = Callable[[Tensor], object]
MeanRange: TypeAlias = "tuple[Tensor, Tensor]"  # centre and half-width of each Gaussian dimension


class ActionModel(Protocol):
    """How actions of one space are drawn, masked, stored and sent."""

    num_params: int  # A: parameters of the distribution
    num_noise: int  # random numbers per draw
    num_gaussian: int  # Gaussian dimensions: means, and as many log stds
    num_clipped: int  # components that `clip_fraction` averages over
    mask_size: int  # choices that a mask can forbid
    shape: tuple[int, ...]  # shape of one stored action
    dtype: torch.dtype
    log_std_slices: tuple[slice, ...]  # positions of the log stds among the parameters
    gaussian_noise: tuple[slice, ...]  # positions of the Gaussian dimensions in a row of noise
    kernel_parts: tuple[KernelPart, ...]  # the same distribution in the kernels' terms

    def num_outputs(self, std: str) -> int:
        """The number of network outputs, including log stds if they depend on the state (std "state")."""
        ...

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        """The distribution's parameters `[..., A]` from the network's outputs.

        `log_std` `[num_gaussian]` or `[..., num_gaussian]`: from a parameter; None: the network outputs them, through a
        softplus, at `log_std_slices`. `mean_range` (each `[num_gaussian]`): squash the means, centre + half·tanh(·).
        """
        ...

    def gaussian_bounds(self) -> tuple[Array, Array]:
        """Lowest and highest action of each Gaussian dimension, float32 `[num_gaussian]`."""
        ...

    def distribution(self, params: Tensor) -> Distribution: ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor: ...

    def draw(self, params: Tensor, noise: Tensor) -> Tensor: ...

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """The parameters of the distribution over legal actions only, given a mask `[..., mask_size]`."""
        ...

    def to_env(self, action: Array) -> Sequence[object] | Array:
        """The actions to send, indexable by env."""
        ...

    def to_each(self, action: Array) -> list[object]:
        """The actions of N envs, each a member of the space."""
        ...

    def to_vector_env(self, action: Array) -> object:
        """The actions for a `gymnasium.vector.VectorEnv`: arrays over the envs in the space's structure."""
        ...

    def tensor_sender(self, device: torch.device) -> Sender:
        """A version of `to_vector_env` for tensors `[N, ...]`; constants are copied to the device once."""
        ...

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        """Fraction of each action's components that the env's bounds will clip; None if nothing can be clipped."""
        ...


def torch_dtype(kind: object) -> torch.dtype:
    """The PyTorch dtype for a NumPy dtype."""
    dtype: torch.dtype = torch.from_numpy(np.zeros(0, kind)).dtype
    return dtype


class SingleAction:
    """Defaults for actions that are a single array: no Gaussian, no mask, nothing clipped."""

    num_params: int
    num_gaussian = 0
    num_clipped = 0
    mask_size = 0
    log_std_slices: tuple[slice, ...] = ()
    gaussian_noise: tuple[slice, ...] = ()

    def __init__(self, space: GymSpace, bounds: str = "clip") -> None:
        self._send = sender(space, bounds)

    def num_outputs(self, std: str) -> int:
        return self.num_params - (0 if std == "state" else self.num_gaussian)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return outputs

    def gaussian_bounds(self) -> tuple[Array, Array]:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return params

    def to_env(self, action: Array) -> Array:
        return self._send(action)

    def to_each(self, action: Array) -> list[object]:
        sent = self.to_env(action)
        return [sent[index, ...] for index in range(len(sent))]  # with `...`, a space without axes still gives arrays

    def to_vector_env(self, action: Array) -> object:
        return self.to_env(action)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        return None
