"""Returns and lengths of finished episodes, as the env counts them: raw rewards, whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.types import Array, Step


@dataclass(slots=True)
class Episode:
    """One finished episode."""

    env: int
    ret: float
    length: int
    info: dict[str, float] = field(default_factory=dict)


class EpisodeTracker:
    """Adds up the episodes of N envs; `info_keys` names numbers to keep from each episode's last info."""

    def __init__(self, num_envs: int, info_keys: Sequence[str] = ()) -> None:
        self.ret = np.zeros(num_envs)
        self.length = np.zeros(num_envs, np.int64)
        self.info_keys = tuple(info_keys)
        self.finished: list[Episode] = []

    def add(self, step: Step) -> None:
        self.ret += np.where(step.valid, step.reward, 0.0)
        self.length += step.valid
        for index, info in step.final_info.items():
            if step.valid[index]:
                self.finish(index, {k: float(info[k]) for k in self.info_keys if k in info})

    def finish(self, index: int, info: dict[str, float] | None = None) -> None:
        self.finished.append(Episode(index, float(self.ret[index]), int(self.length[index]), info or {}))
        self.ret[index], self.length[index] = 0.0, 0

    def cut(self, whole: Array) -> None:
        """Every env is about to be reset. Open episodes that are `whole` count, the others are dropped."""
        for index in np.flatnonzero(whole & (self.length > 0)):
            self.finish(int(index))
        self.ret[:], self.length[:] = 0.0, 0

    def take(self) -> list[Episode]:
        """The episodes finished since the last call."""
        finished, self.finished = self.finished, []
        return finished
