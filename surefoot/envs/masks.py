"""Finds and reads the action masks of an env, for every adapter, the doctor and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.spaces.layout import MASK
from surefoot.spaces.masks import ActionMasks

if TYPE_CHECKING:
    from surefoot.types import Array, GymEnv, GymSpace, GymVectorEnv, Info

Source = Literal["observation", "method", "info"]
Method: TypeAlias = Callable[[], object]  # an `action_masks()`


def mask_source(space: GymSpace, *, method: Callable[[], bool], in_info: Callable[[], bool]) -> Source | None:
    """Where the masks are: in a Dict observation, else in a `method`, else in the first info; checked in this order."""
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        return "observation"
    if method():
        return "method"
    return "info" if in_info() else None


def has_method(env: GymEnv) -> bool:
    return env.has_wrapper_attr("action_masks")


def method_of(env: GymEnv) -> Method:
    return lambda: env.get_wrapper_attr("action_masks")()


def vector_method(envs: GymVectorEnv) -> Method | None:
    """The `action_masks()` of a vector env, or of its envs if they live in this process.

    Envs in separate processes (AsyncVectorEnv) are not asked: an env without such a method would crash.
    """
    inner = envs.unwrapped
    if callable(own := getattr(inner, "action_masks", None)):
        return own  # type: ignore[no-any-return]
    if isinstance(inner, gym.vector.SyncVectorEnv) and has_method(inner.envs[0]):
        return lambda: [method_of(env)() for env in inner.envs]
    return None


class MaskReader:
    """Reads the masks of envs with one action space from one source; None if there are none."""

    def __init__(self, action_space: GymSpace, source: Source | None) -> None:
        self._masks = ActionMasks(action_space)
        self.source = source if self._masks.size else None
        self.size = self._masks.size if self.source else 0  # booleans per row
        self.sizes = self._masks.sizes  # sizes of the components that can be masked

    @classmethod
    def find(
        cls,
        observation_space: GymSpace,
        action_space: GymSpace,
        *,
        method: Callable[[], bool] = lambda: False,
        in_info: Callable[[], bool],
    ) -> MaskReader:
        """The reader for envs with these spaces. Envs whose actions cannot be masked are not asked."""
        maskable = ActionMasks(action_space).size
        return cls(action_space, mask_source(observation_space, method=method, in_info=in_info) if maskable else None)

    def given(self, obs: Any, info: Info, method: Method | None = None, *, always: bool = True) -> Any:
        """A mask as the env provides it. Without `always`, an info without a mask means that everything is legal."""
        if self.source == "observation":
            return obs[MASK]
        if self.source == "method":
            assert method is not None
            return method()
        if always and MASK not in info:
            raise ValueError(f"its info has no '{MASK}', though there was one at first")
        return info.get(MASK)

    def row(self, obs: object, info: Info, method: Method | None = None) -> Array:
        """`[size]` booleans of one env; ValueError if the mask does not fit or leaves no legal action."""
        return self.flat(self.given(obs, info, method))

    def flat(self, mask: object) -> Array:
        """One env's mask as `[size]` booleans; `mask` None means that everything is legal."""
        return self._masks.flat(mask)

    @property
    def free(self) -> Array | None:
        """The row of a final observation: no action is taken there, so its mask does not matter. None without masks."""
        return np.ones(self.size, np.bool_) if self.source else None
