"""From an action space to a distribution, and from a drawn action to what the env accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from surefoot.errors import UsageError
from surefoot.math.distributions import Categorical, DiagGaussian

if TYPE_CHECKING:
    from surefoot.types import Array, Distribution


class ActionModel(Protocol):
    """How actions of one space are drawn, stored and sent."""

    num_params: int  # A, of the distribution
    shape: tuple[int, ...]  # of one stored action
    dtype: torch.dtype

    def distribution(self, params: Tensor) -> Distribution: ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor: ...

    def draw(self, params: Tensor, noise: Tensor) -> Tensor: ...

    def to_env(self, action: Array) -> Array: ...

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        """Share of each action's components that the env's bounds will cut; None where there is nothing to cut."""
        ...


class DiscreteActions:
    """`Discrete(n, start)`: a Categorical over 0..n−1; `start` is added on the way to the env."""

    shape: tuple[int, ...] = ()
    dtype = torch.int64

    def __init__(self, space: spaces.Discrete) -> None:
        self.num_params, self.start = int(space.n), int(space.start)

    def distribution(self, params: Tensor) -> Categorical:
        return Categorical(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Categorical.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return Categorical.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        return action + self.start if self.start else action

    def clip_fraction(self, action: Tensor) -> None:
        return None


class BoxActions:
    """`Box`: a diagonal Gaussian. The raw draw is stored and scored; the env receives it clipped to its bounds."""

    dtype = torch.float32

    def __init__(self, space: spaces.Box) -> None:
        if not np.issubdtype(space.dtype, np.floating):
            raise UsageError(f"a Box of {space.dtype} actions is not supported; use float32, or a Discrete space")
        if 0 in space.shape:
            raise UsageError(f"the action space {space} has no dimension to act in")
        self.env_shape = space.shape
        self.shape: tuple[int, ...] = (int(np.prod(space.shape)),)
        self.num_params = 2 * self.shape[0]
        self.low, self.high, self.env_dtype = space.low, space.high, space.dtype
        self.bounded = bool(np.isfinite(space.low).any() or np.isfinite(space.high).any())

    def distribution(self, params: Tensor) -> DiagGaussian:
        return DiagGaussian.from_params(params)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return DiagGaussian.noise((*shape, self.num_params), generator)

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        return DiagGaussian.draw(params, noise)

    def to_env(self, action: Array) -> Array:
        shaped = action.reshape(*action.shape[:-1], *self.env_shape)
        return np.clip(shaped, self.low, self.high).astype(self.env_dtype, copy=False)

    def clip_fraction(self, action: Tensor) -> Tensor | None:
        if not self.bounded:
            return None
        low = torch.from_numpy(self.low.reshape(-1)).to(action)
        high = torch.from_numpy(self.high.reshape(-1)).to(action)
        return ((action < low) | (action > high)).float().mean(-1)


def build_actions(space: spaces.Space[Any]) -> ActionModel:
    """The action model of a space, or an error that says what is supported."""
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(space)
    if isinstance(space, spaces.Box):
        return BoxActions(space)
    raise UsageError(
        f"actions of {type(space).__name__} are not supported yet; supported: Discrete, Box. "
        "Wrap the env so that it takes one of these."
    )
