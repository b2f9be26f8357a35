"""Spaces as JSON, so that a saved policy can be loaded without its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.spaces import plain
from surefoot.spaces.of_gym import gym_space

if TYPE_CHECKING:
    from surefoot.types import GymSpace


def space_to_json(space: GymSpace) -> dict[str, object]:
    if isinstance(space, spaces.Box):
        # repr of a number is exact, and "inf" is not a JSON number.
        low, high = (_short([repr(x) for x in side.reshape(-1).tolist()]) for side in (space.low, space.high))
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": low,
            "high": high,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        return {
            "type": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": space.start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise UsageError(f"spaces of {type(space).__name__} cannot be saved")


def space_from_json(data: Mapping[str, object]) -> GymSpace:
    """The space that `space_to_json` wrote; ValueError, TypeError or KeyError for anything else."""
    return gym_space(plain.from_json(data))


def _short(numbers: list[str]) -> list[str]:
    """Shorten bounds that repeat one number thousands of times, as an image's do."""
    return numbers[:1] if len(set(numbers)) == 1 else numbers
