"""Running sums of what random play saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from surefoot.types import Array, GymSpace


class Seen:
    """Running range and spread of every number of a leaf."""

    def __init__(self, space: GymSpace, first: Array) -> None:
        self.space, self.count = space, 0
        self.low, self.high = first.astype(np.float64), first.astype(np.float64)
        self.mean, self.squares = np.zeros(first.shape), np.zeros(first.shape)

    def add(self, value: Array) -> None:
        self.count += 1
        np.minimum(self.low, value, out=self.low)
        np.maximum(self.high, value, out=self.high)
        change = value - self.mean
        self.mean += change / self.count
        self.squares += change * (value - self.mean)

    @property
    def std(self) -> Array:
        return np.sqrt(self.squares / self.count)


class Tally:
    """What random play saw."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.terminated = 0
        self.open: int | None = None  # steps of the abandoned episode
        self.leaves: dict[str, Seen] = {}

    def observe(self, path: str, space: GymSpace, value: Array) -> None:
        value = np.asarray(value, np.float64)
        if path not in self.leaves:
            self.leaves[path] = Seen(space, value)
        self.leaves[path].add(value)
