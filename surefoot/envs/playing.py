"""Plays whole episodes to their end: the one loop behind evaluation, selection, the target, videos and the doctor.

The caller supplies the envs (Gymnasium's, native, multi-agent or the doctor's) and the actor (a policy, random actions,
a list of actions), and iterates over the turns to collect what it needs (returns, frames, findings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from surefoot.types import EpisodeEnvs

if TYPE_CHECKING:
    from surefoot.types import Actions, Array, Step

E = TypeVar("E", bound=EpisodeEnvs)
E_contra = TypeVar("E_contra", bound=EpisodeEnvs, contravariant=True)


class Actor(Protocol[E_contra]):
    """Chooses actions."""

    def act(self, envs: E_contra, rows: Array, begins: Array) -> Actions:
        """The actions for these rows of the envs; `begins` marks the rows whose episode begins."""
        ...


class Abandoned(Exception):
    """Playing was stopped before all episodes had ended."""


class Played(NamedTuple):
    """An episode that is over. `total`: the undiscounted sum of its rewards, or the mean of its agents' sums."""

    number: int
    total: float
    length: int
    cut: bool  # ended by our step limit, not by the env


class Turn(NamedTuple):
    """One step of the envs, or the start of episodes if `step` is None."""

    step: Step | None
    ended: Sequence[Played]
    returns: Array  # [N] of the open episodes so far, by row
    lengths: Array  # [E] the same, by env


def play(
    envs: E,
    actor: Actor[E],
    episodes: Sequence[int],
    *,
    limit: int,
    abandon: Callable[[], bool] = lambda: False,
) -> Iterator[Turn]:
    """Play the episodes with these numbers. Env k of n plays `episodes` k, k + n, k + 2n, …, so short ones get no
    preference. An episode that reaches `limit` steps is cut.

    A turn is yielded before the next one begins, so an ended episode can still be inspected. `abandon` is called before
    every step; once it returns True, `Abandoned` is raised.
    """
    book = _Book(envs, episodes, limit)
    begin = [place for place in range(book.places) if book.has(place)]
    while True:
        if begin:
            book.begin(begin)
            yield Turn(None, (), book.returns, book.lengths)
        active = book.active()
        rows = np.flatnonzero(active)
        if not rows.size:
            return
        if abandon():
            raise Abandoned
        actions = actor.act(envs, rows, book.begins[rows])
        step = envs.step(spread(actions, rows, envs.num_envs), active)
        ended = book.add(step, active, rows)
        yield Turn(step, [book.played(place) for place in ended], book.returns, book.lengths)
        begin = [place for place in ended if book.follow(place)]


def finished(turns: Iterator[Turn]) -> Iterator[Played]:
    """Only the episodes, in the order in which they ended."""
    for turn in turns:
        yield from turn.ended


class _Book:
    """Which episode each env is playing, with its return and length so far."""

    def __init__(self, envs: EpisodeEnvs, episodes: Sequence[int], limit: int) -> None:
        self.envs, self.episodes, self.limit = envs, episodes, limit
        self.width = envs.num_agents
        self.places = envs.num_envs // self.width
        self.turn = list(range(self.places))  # per env: index of the episode that it plays
        self.open = np.zeros(self.places, np.bool_)
        self.late = np.zeros(self.places, np.bool_)
        self.lengths = np.zeros(self.places, np.int64)
        self.returns = np.zeros(envs.num_envs)
        self.joined = np.zeros(envs.num_envs, np.bool_)  # rows that have been part of the open episode
        self.begins = np.zeros(envs.num_envs, np.bool_)  # rows that have not acted in it yet

    def _by_row(self, places: Array) -> Array:
        """Expand [E], per env, to [N], per row."""
        return places if self.width == 1 else np.repeat(places, self.width)

    def has(self, place: int) -> bool:
        return self.turn[place] < len(self.episodes)

    def begin(self, places: list[int]) -> None:
        for place in places:
            self.envs.begin(place, self.episodes[self.turn[place]])
        begun = np.zeros(self.places, np.bool_)
        begun[places] = True
        self.lengths[begun], self.open[begun] = 0, True
        rows = self._by_row(begun)
        self.returns[rows] = 0.0
        self.joined[rows] = self.begins[rows] = self.envs.acting[rows]

    def follow(self, place: int) -> bool:
        """Move on to the env's next episode; False if there is none."""
        self.turn[place] += self.places
        self.open[place] = False
        return self.has(place)

    def active(self) -> Array:
        """[N] bool: the rows that act next."""
        return self.envs.acting & self._by_row(self.open)

    def add(self, step: Step, active: Array, rows: Array) -> list[int]:
        """Add a step; returns the envs whose episodes ended with it."""
        acting = self.envs.acting
        self.returns[rows] += step.reward[rows]
        self.lengths[self.open] += 1
        self.begins = acting & ~active  # agents may join after the start of the episode
        self.joined |= acting
        goes_on = acting if self.width == 1 else acting.reshape(self.places, self.width).any(1)
        self.late = goes_on & (self.lengths >= self.limit)
        over: list[int] = np.flatnonzero(self.open & (self.late | ~goes_on)).tolist()
        return over

    def played(self, place: int) -> Played:
        number, length = self.episodes[self.turn[place]], int(self.lengths[place])
        if self.width == 1:
            return Played(number, float(self.returns[place]), length, bool(self.late[place]))
        rows = slice(place * self.width, (place + 1) * self.width)
        total = float(np.mean(self.returns[rows][self.joined[rows]]))
        return Played(number, total, length, bool(self.late[place]))


def spread(actions: Actions, rows: Array, size: int) -> Actions:
    """Expands the actions of some rows to all rows; the others, which are ignored, are zero or None."""
    if len(rows) == size:
        return actions
    if isinstance(actions, np.ndarray):
        sent = np.zeros((size, *actions.shape[1:]), actions.dtype)
        sent[rows] = actions
        return sent
    each: list[object] = [None] * size
    for row, action in zip(rows.tolist(), actions, strict=True):
        each[row] = action
    return each
