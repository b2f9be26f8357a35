"""Builds the action model of a space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.policies.actions.box import BetaBoxActions, BoxActions, TanhBoxActions
from surefoot.policies.actions.composite import CompositeActions
from surefoot.policies.actions.discrete import DiscreteActions, MultiBinaryActions, MultiDiscreteActions
from surefoot.policies.actions.model import ActionModel
from surefoot.spaces.supported import unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from surefoot.types import GymSpace

Bounds: TypeAlias = Literal["clip", "tanh", "beta"]
MOST_CHOICES = 2**24  # float32 represents all integers up to this


def build_actions(space: GymSpace, bounds: Bounds = "clip") -> ActionModel:
    """The action model of a space, or an error that says what is supported.

    `bounds`: how Box parts are kept within their bounds.
    """
    if isinstance(space, spaces.Dict):
        return CompositeActions(_parts(space, space.spaces.values(), bounds), list(space.spaces))
    if isinstance(space, spaces.Tuple):
        return CompositeActions(_parts(space, space.spaces, bounds), None)
    if isinstance(space, spaces.Box):
        return _box(space, bounds)
    if isinstance(space, spaces.MultiBinary):
        return MultiBinaryActions(space)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        choices = int(space.n) if isinstance(space, spaces.Discrete) else sum(int(n) for n in space.nvec.reshape(-1))
        if choices == 0:
            raise UsageError(f"the action space {space} has no dimension to act in")
        if choices > MOST_CHOICES:
            raise UsageError(
                f"the action space {space} has {choices:,} choices, more than the {MOST_CHOICES:,} that a network can "
                "name one by one; wrap the env so that it takes several smaller choices (MultiDiscrete) or a Box"
            )
        return DiscreteActions(space) if isinstance(space, spaces.Discrete) else MultiDiscreteActions(space)
    raise unsupported(space, "the action space")


def _parts(space: GymSpace, inner: Iterable[GymSpace], bounds: Bounds) -> list[ActionModel]:
    parts = [build_actions(part, bounds) for part in inner]
    if not parts:
        raise UsageError(f"the action space {space} is empty: there is nothing to choose")
    return parts


def _box(space: spaces.Box, bounds: Bounds) -> ActionModel:
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"a Box of {space.dtype} actions is not supported; use Discrete or MultiDiscrete for whole numbers, "
            "or a Box of float32"
        )
    if 0 in space.shape:
        raise UsageError(f"the action space {space} has no dimension to act in")
    if bounds == "tanh":
        return TanhBoxActions(space)
    return BetaBoxActions(space) if bounds == "beta" else BoxActions(space)
