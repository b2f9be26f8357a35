"""Open episodes in a checkpoint: the seed and the actions so far determine the state of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

import numpy as np
from gymnasium import spaces

from surefoot.errors import EnvError, user_errors
from surefoot.schema import ArrayOf, Items, Optional, Record, Shape, Whole
from surefoot.spaces.layout import Layout

if TYPE_CHECKING:
    from surefoot.types import Array, GymSpace

LONGEST_REPLAY = 200_000  # at most this many actions of an open episode are kept for a resume


class EpisodesState(TypedDict):
    """The open episodes of some envs, one entry each."""

    episode: list[int]
    steps: list[int]
    actions: list[Array | None]  # [steps, ...]


def as_episodes(state: Mapping[str, object]) -> EpisodesState:
    """Cast a state that was checked to have `episodes_shape`."""
    return cast(EpisodesState, state)


class Episodic(Protocol):
    """Plays one episode after another and remembers the actions of the open one."""

    episode: int
    steps: int

    @property
    def actions(self) -> Sequence[object]: ...

    def close(self) -> object: ...


def kept(action: object) -> object:
    """A copy, because the env may modify the action it gets."""
    return action.copy() if isinstance(action, (np.ndarray, np.generic)) else deepcopy(action)


class OpenEpisodes:
    """Saves and loads open episodes. `agents`: a step's action is a list with one action per agent."""

    def __init__(self, space: GymSpace, *, agents: bool = False) -> None:
        self._layout = Layout(space) if isinstance(space, (spaces.Dict, spaces.Tuple)) else None
        self._agents, self._space = agents, space

    def state_dict(self, envs: Sequence[Episodic]) -> EpisodesState:
        """Number, steps and actions so far. (An episode too long to remember has fewer actions.)"""
        return {
            "episode": [env.episode for env in envs],
            "steps": [env.steps for env in envs],
            "actions": [np.stack(list(map(self._pack, env.actions))) if env.actions else None for env in envs],
        }

    def state_shape(self, count: int) -> Shape:
        """The shape of the state of `count` envs."""
        return episodes_shape(count, None if self._agents else self._space.shape)

    def read(self, state: Mapping[str, object], index: int) -> tuple[int, list[Any] | None]:
        """(number, actions) of an env's open episode; actions are None if not all are known."""
        known, rows = as_episodes(state), as_episodes(state)["actions"][index]
        actions = [] if rows is None else [self._unpack(row) for row in np.asarray(rows)]
        return known["episode"][index], actions if len(actions) == known["steps"][index] else None

    def _pack(self, action: Any) -> Array:
        layout = self._layout
        if layout is None:
            return np.asarray(action)
        return np.stack([layout.pack(each) for each in action]) if self._agents else layout.pack(action)

    def _unpack(self, row: Array) -> object:
        layout = self._layout
        if layout is None:
            return row
        return [layout.unpack(each) for each in row] if self._agents else layout.unpack(row)


def episodes_shape(count: int, action: tuple[int, ...] | None) -> Shape:
    """The shape of the state of `count` envs. `action`: the shape of an action, if it is a single array."""
    numbers, rows = Items(Whole(), count), ArrayOf(None if action is None else (None, *action))
    return Record(episode=numbers, steps=numbers, actions=Items(Optional(rows), count))


def close_all(envs: Iterable[Episodic]) -> None:
    """Close every env, even if one raises; the error is raised when all are closed."""
    broken: EnvError | None = None
    for env in envs:
        try:
            env.close()
        except user_errors() as error:
            broken = EnvError(f"close of {env} raised {type(error).__name__}: {error}")
            broken.__cause__ = error
    if broken is not None:
        raise broken
