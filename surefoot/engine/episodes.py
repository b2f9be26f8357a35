"""Returns and lengths of finished episodes: raw rewards, whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from surefoot.errors import UsageError
from surefoot.schema import ArrayOf, Flag, Number, Optional, Record, Shape, Table, Whole

if TYPE_CHECKING:
    from surefoot.types import Array, Step


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    env: int
    ret: float
    length: int
    info: dict[str, float] = field(default_factory=dict)
    truncated: bool = False  # the clock ended it, or the end of the rollout


EPISODE = Record(  # as JSON holds it
    env=Whole(), ret=Number(), length=Whole(), info=Table(Number(finite=False)), truncated=Optional(Flag(), later=True)
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
        self.finished: list[Episode] = []

    def add(self, step: Step, first: int = 0) -> None:
        """Add a step of the envs from `first` on."""
        own = slice(first, first + len(step.valid))
        self.ret[own] += np.where(step.valid, step.reward, 0.0)
        self.length[own] += step.valid
        for index, info in step.final_info.items():
            if step.valid[index]:
                kept = {k: self._number(k, info[k]) for k in self.info_keys if k in info}
                self.finish(first + index, kept, truncated=not step.terminated[index])
            else:  # cut short by a worker that died
                self.forget(first + index)

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
        """Of the finished episodes not yet taken, keep the first of each env."""
        first = {episode.env: episode for episode in reversed(self.finished)}
        self.finished = [episode for episode in self.finished if first[episode.env] is episode]

    def take(self) -> list[Episode]:
        """The episodes finished since the last call."""
        finished, self.finished = self.finished, []
        return finished
