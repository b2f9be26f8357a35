"""The interface of rollout storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.contract import Actor
    from surefoot.envs.device_rewards import DeviceRewardNormalizer
    from surefoot.envs.rewards import RewardNormalizer
    from surefoot.math.operations import Operations
    from surefoot.types import Array, Rollout


class Storage(Protocol):
    """T steps of N envs, allocated once. Steps and observations are what the envs return, NumPy or tensors."""

    obs: Tensor  # [T+1, N, ...] raw
    action: Tensor  # [T, N, ...]
    params: Tensor  # [T, N, A]
    log_prob: Tensor  # [T, N], if the actor computes it
    start: Tensor  # [T+1, N] bool: the first observation of an episode

    @property
    def normalizer(self) -> RewardNormalizer | DeviceRewardNormalizer | None:
        """What normalises the rewards, where they are."""
        ...

    def clear(self) -> None:
        """A new rollout begins."""
        ...

    def start_with(self, obs: Any) -> None:
        """The rollout begins with these observations, from a reset."""
        ...

    def continue_from(self, last: int) -> None:
        """The rollout begins where the previous one ended."""
        ...

    def to_env(self, t: int, own: slice) -> object:
        """The actions of these envs in the form that they expect."""
        ...

    def store(self, t: int, own: slice, step: Any, memory: Tensor | None) -> None:
        """Store what the envs in `own` returned at step t. `memory`: of all envs."""
        ...

    def count_episodes(self, t: int | None, wanted: int) -> Any:
        """`[N]` bool: the envs that have not ended `wanted` episodes after step t. t None: before the first step."""
        ...

    def time_to_look(self, t: int) -> bool:
        """Whether to check after step t if all envs are done."""
        ...

    def sort_finals(self) -> None:
        """Sort truncations by position, in case envs stepped at their own pace."""
        ...

    def read(self, used: int, *, whole_episodes: bool) -> int:
        """The number of used steps, once the rollout is over."""
        ...

    def truncate_open(self, used: int, memory: Tensor | None) -> Array:
        """End every open episode at the last step; returns which were open, `[N]` bool."""
        ...

    def scaled_rewards(self, used: int, scale: float, sign: bool, operations: Operations) -> Tensor:
        """The rewards used for learning, `[T, N]` float32 on the policy's device."""
        ...

    def rollout(self, used: int, reward: Tensor, actor: Actor, memory: Tensor | None, remaining: float) -> Rollout:
        """The rollout on the policy's device, without values yet. `memory`: the memory before the first step."""
        ...

    def require_sound(self, used: int, rollout: Rollout) -> None:
        """Check for faults of the envs that were not checked at every step."""
        ...

    def restore(self, obs: Tensor, start: Tensor, fresh: Mapping[int, Array]) -> None:
        """Continue from a checkpoint. `fresh`: envs that could not be restored, with their new first observations."""
        ...
