"""Returns and lengths of finished episodes: raw rewards, whole episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypedDict, overload

import numpy as np

from surefoot.errors import UsageError
from surefoot.schema import ArrayOf, Flag, MapOf, Number, Optional, Record, Shape, Whole

if TYPE_CHECKING:
    from surefoot.types import Array, Info, Step


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    env: int
    ret: float
    length: int
    info: dict[str, float] = field(default_factory=dict)
    truncated: bool = False  # the clock ended it, or the end of the rollout


NO_INFO: dict[str, float] = {}  # shared by all episodes of a GPU: a million empty ones would keep the collector busy


class EpisodeColumns(Sequence[Episode]):
    """The episodes that ended in a rollout, as columns: a GPU ends thousands of them in a millisecond."""

    def __init__(self, env: Array, ret: Array, length: Array, truncated: Array) -> None:
        self.env, self.ret, self.length, self.truncated = env, ret, length, truncated

    @classmethod
    def of_numbers(cls, env: Array, ret: Array, length: Array, truncated: Array) -> EpisodeColumns:
        """From columns that a device has written as float64."""
        return cls(env.astype(np.int64), ret, length.astype(np.int64), truncated.astype(np.bool_))

    def __len__(self) -> int:
        return len(self.env)

    @overload
    def __getitem__(self, at: int) -> Episode: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Episode]: ...
    def __getitem__(self, at: int | slice) -> Episode | Sequence[Episode]:
        if isinstance(at, slice):
            return EpisodeColumns(self.env[at], self.ret[at], self.length[at], self.truncated[at])
        return Episode(int(self.env[at]), float(self.ret[at]), int(self.length[at]), NO_INFO, bool(self.truncated[at]))

    def __iter__(self) -> Iterator[Episode]:
        columns = (self.env, self.ret, self.length)
        yield from map(Episode, *(column.tolist() for column in columns), repeat(NO_INFO), self.truncated.tolist())


MOST_ENVS = 1024  # whose episodes are told apart: a GPU steps many more, and ends thousands of episodes at once


def of_first_envs(episodes: Sequence[Episode]) -> Sequence[Episode]:
    """Those of the first `MOST_ENVS` envs, where a GPU steps more."""
    if not isinstance(episodes, EpisodeColumns) or not len(episodes) or int(episodes.env.max()) < MOST_ENVS:
        return episodes
    own = episodes.env < MOST_ENVS
    return EpisodeColumns(episodes.env[own], episodes.ret[own], episodes.length[own], episodes.truncated[own])


def rows_of(episodes: Sequence[Episode]) -> Iterator[tuple[int, float, int]]:
    """(env, return, length) of each."""
    if isinstance(episodes, EpisodeColumns):
        return zip(episodes.env.tolist(), episodes.ret.tolist(), episodes.length.tolist(), strict=True)
    return ((episode.env, episode.ret, episode.length) for episode in episodes)


def returns_of(episodes: Sequence[Episode]) -> list[float]:
    if isinstance(episodes, EpisodeColumns):
        returns: list[float] = episodes.ret.tolist()
        return returns
    return [episode.ret for episode in episodes]


EPISODE = Record(  # the form in JSON
    env=Whole(), ret=Number(), length=Whole(), info=MapOf(Number(finite=False)), truncated=Optional(Flag(), later=True)
)


class EpisodeState(TypedDict):
    """An `Episode` in a checkpoint."""

    env: int
    ret: float
    length: int
    info: dict[str, float]


class TrackerState(TypedDict):
    ret: Array
    length: Array


class EpisodeTracker:
    """Tracks the episodes of N envs; `info_keys` names numbers to keep from each episode's last info."""

    def __init__(self, num_envs: int, info_keys: Sequence[str] = ()) -> None:
        self.ret = np.zeros(num_envs)
        self.length = np.zeros(num_envs, np.int64)
        self.info_keys = tuple(info_keys)
        self.missing: dict[str, list[str]] = {}  # keys that were not in an info, and those that were
        self.finished: list[Episode] = []
        self._columns: list[EpisodeColumns] = []  # that ended before those in `finished`

    def add(self, step: Step, first: int = 0) -> None:
        """Add a step of the envs from `first` on."""
        own = slice(first, first + len(step.valid))
        self.ret[own] += np.where(step.valid, step.reward, 0.0)
        self.length[own] += step.valid
        for index, info in step.final_info.items():
            if step.valid[index]:
                self.finish(first + index, self._kept(info), truncated=not step.terminated[index])
            else:  # cut short by a worker that died
                self.forget(first + index)

    def add_all(
        self, reward: Array, valid: Array, ends: tuple[Array, Array], infos: Mapping[tuple[int, int], Info]
    ) -> None:
        """`add` every step of a rollout `[T, N]`. `ends`: terminated and truncated. `infos`: by step and env."""
        terminated, truncated = ends
        paid, counted = np.where(valid, reward, 0.0).T.copy(), valid.T.copy()
        begun = [0] * len(paid)

        def sum_up(env: int, until: int) -> None:
            if (rows := slice(begun[env], until)).start < until:
                paid[env, rows.start] += self.ret[env]
                # One after the other, like `add`: the order decides the last bits.
                self.ret[env] = np.add.accumulate(paid[env, rows])[-1]
                self.length[env] += np.count_nonzero(counted[env, rows])
            begun[env] = until

        for t, env in np.argwhere(terminated | truncated).tolist():
            sum_up(env, t + 1)
            if valid[t, env]:
                self.finish(env, self._kept(infos.get((t, env), {})), truncated=not terminated[t, env])
            else:  # cut short by a worker that died
                self.forget(env)
        for env in range(len(paid)):
            sum_up(env, len(reward))

    def _kept(self, info: Info) -> dict[str, float]:
        for key in self.info_keys:
            if key not in info:
                self.missing.setdefault(key, [str(name) for name in info])
        return {key: self._number(key, info[key]) for key in self.info_keys if key in info}

    @staticmethod
    def _number(key: str, value: object) -> float:
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "fiub":
            raise UsageError(f"log_info: {key!r} of the env's info is {value!r}, which is not one number")
        return float(array.reshape(()))

    def finish(self, index: int, info: dict[str, float] | None = None, *, truncated: bool = True) -> None:
        ret, length = float(self.ret[index]), int(self.length[index])
        self.finished.append(Episode(int(index), ret, length, info or {}, bool(truncated)))  # `index` may be NumPy's
        self.ret[index], self.length[index] = 0.0, 0

    def finish_many(self, episodes: EpisodeColumns, ret: Array, length: Array) -> None:
        """Episodes of one rollout; `ret` and `length` `[N]` are those of the open ones after it."""
        self._columns.append(episodes)
        self.ret[:], self.length[:] = ret, length

    def carry(self, ret: Array, length: Array) -> None:
        """Return and length `[N]` of the open episodes."""
        self.ret[:], self.length[:] = ret, length

    def cut(self, whole: Array) -> None:
        """Every env is about to be reset. Open episodes that are `whole` are counted, the others dropped."""
        for index in np.flatnonzero(whole & (self.length > 0)):
            self.finish(int(index))
        self.ret[:], self.length[:] = 0.0, 0

    def forget(self, index: int) -> None:
        """Drop the open episode of one env."""
        self.ret[index], self.length[index] = 0.0, 0

    def state_dict(self) -> TrackerState:
        return {"ret": self.ret.copy(), "length": self.length.copy()}

    def state_shape(self) -> Shape:
        size = (len(self.ret),)
        return Record(ret=ArrayOf(size, "float64"), length=ArrayOf(size, "int64", low=0.0))

    def load_state_dict(self, state: TrackerState) -> None:
        self.ret, self.length = np.asarray(state["ret"]).copy(), np.asarray(state["length"]).copy()

    def keep_first(self) -> None:
        """Keep only the first of each env's finished episodes that have not been taken yet."""
        self.finished, self._columns = [*chain(*self._columns), *self.finished], []
        first = {episode.env: episode for episode in reversed(self.finished)}
        self.finished = [episode for episode in self.finished if first[episode.env] is episode]

    def take(self) -> Sequence[Episode]:
        """The episodes finished since the last call."""
        finished, columns, self.finished, self._columns = self.finished, self._columns, [], []
        if len(columns) == 1 and not finished:
            return columns[0]
        return [*chain(*columns), *finished] if columns else finished
