"""What every action model can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from surefoot.kernels.heads import KernelPart
    from surefoot.types import Array, Distribution

Sender: TypeAlias = Callable[[Tensor], object]
MeanRange: TypeAlias = "tuple[Tensor, Tensor]"  # centre and half-width of each Gaussian dimension


class ActionModel(Protocol):
    """How actions of one space are drawn, masked, stored and sent."""

    num_params: int  # A, of the distribution
    num_noise: int  # numbers that one draw takes
    num_gaussian: int  # Gaussian dimensions: means, and as many log stds
    num_clipped: int  # components that `clip_fraction` averages over
    mask_size: int  # choices that a mask can forbid
    shape: tuple[int, ...]  # of one stored action
    dtype: torch.dtype
    log_std_slices: tuple[slice, ...]  # where the log stds stand among the parameters
    gaussian_noise: tuple[slice, ...]  # where the noise of the Gaussian dimensions stands in a row of it
    kernel_parts: tuple[KernelPart, ...]  # the same distribution as compiled kernels know it

    def num_outputs(self, std: str) -> int:
        """Numbers that the network gives: with the log stds only where its head gives them (std "state")."""
        ...

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        """The distribution's parameters `[..., A]` from the network's outputs.

        `log_std` `[num_gaussian]` or `[..., num_gaussian]`: those of a parameter; None: the network gives them, through
        a softplus, at `log_std_slices`. `mean_range` (each `[num_gaussian]`): squash the means, centre + half·tanh(·).
        """
        ...

    def gaussian_bounds(self) -> tuple[Array, Array]:
        """Lowest and highest action of each Gaussian dimension, float32 `[num_gaussian]`."""
        ...

    def distribution(self, params: Tensor) -> Distribution: ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor: ...

    def draw(self, params: Tensor, noise: Tensor) -> Tensor: ...

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """The parameters of the distribution over legal actions alone, of a mask `[..., mask_size]`."""
        ...

    def to_env(self, action: Array) -> Sequence[object] | Array:
        """What to send, indexable by env."""
        ...

    def to_each(self, action: Array) -> list[object]:
        """The actions of N envs, each a member of the space."""
        ...

    def to_vector_env(self, action: Array) -> object:
        """What a `gymnasium.vector.VectorEnv` of these envs takes: arrays over the envs in the space's structure."""
        ...

    def tensor_sender(self, device: torch.device) -> Sender:
        """Makes of raw actions `[N, ...]` what `to_vector_env` does, as tensors; constants go to the device once."""
        ...

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        """Share of each action's components that the env's bounds will cut; None where there is nothing to cut."""
        ...


def torch_dtype(kind: object) -> torch.dtype:
    """NumPy's dtype as PyTorch's."""
    dtype: torch.dtype = torch.from_numpy(np.zeros(0, kind)).dtype
    return dtype


class SingleAction(ABC):
    """What holds of one array of numbers, unless its model says otherwise: no Gaussian, no mask, nothing cut."""

    num_params: int
    num_gaussian = 0
    num_clipped = 0
    mask_size = 0
    log_std_slices: tuple[slice, ...] = ()
    gaussian_noise: tuple[slice, ...] = ()

    def num_outputs(self, std: str) -> int:
        return self.num_params - (0 if std == "state" else self.num_gaussian)

    def params_from(self, outputs: Tensor, log_std: Tensor | None, mean_range: MeanRange | None = None) -> Tensor:
        return outputs

    def gaussian_bounds(self) -> tuple[Array, Array]:
        return np.zeros(0, np.float32), np.zeros(0, np.float32)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return params

    @abstractmethod
    def to_env(self, action: Array) -> Array: ...

    def to_each(self, action: Array) -> list[object]:
        sent = self.to_env(action)
        return [sent[index, ...] for index in range(len(sent))]  # the dots keep an array where the space has no axis

    def to_vector_env(self, action: Array) -> object:
        return self.to_env(action)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        return None
