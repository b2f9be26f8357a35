"""Random legal actions, and how fast envs step under them."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from surefoot.spaces.masks import choices

if TYPE_CHECKING:
    from surefoot.types import Array, Envs, GymSpace


def legal_action(space: GymSpace, legal: Array, rng: np.random.Generator) -> object:
    """A random action within a mask: one row of booleans in the order of `choices(space)`."""
    return _draw(space, iter(np.split(legal, np.cumsum(choices(space))[:-1])), rng)


def _draw(space: GymSpace, masks: Iterator[Array], rng: np.random.Generator) -> object:
    if isinstance(space, spaces.Discrete):
        return space.start + rng.choice(np.flatnonzero(next(masks)))
    if isinstance(space, spaces.MultiDiscrete):
        drawn = [rng.choice(np.flatnonzero(next(masks))) for _ in range(space.nvec.size)]
        return (np.reshape(drawn, space.nvec.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: _draw(part, masks, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_draw(part, masks, rng) for part in space.spaces)
    return space.sample()


class Player:
    """Plays envs with random actions, starting with a reset."""

    def __init__(self, envs: Envs, seed: int) -> None:
        self.envs, self._rng = envs, np.random.default_rng(seed)
        envs.action_space.seed(seed)
        self._rows = envs.reset()

    def _action(self, row: Array) -> object:
        layout, space = self.envs.layout, self.envs.action_space
        return space.sample() if layout.mask is None else legal_action(space, row[layout.mask] > 0, self._rng)

    def rate(self, seconds: float) -> float:
        """Env steps per second, after one warm-up step. If that takes longer than `seconds`, only it is measured."""
        steps, spent = self._play(0.0)
        if spent < seconds:
            steps, spent = self._play(seconds)
        return steps / spent

    def _play(self, seconds: float) -> tuple[int, float]:
        """(env steps, seconds inside `envs.step`) in this many seconds; at least one step."""
        steps, spent, until = 0, 0.0, perf_counter() + seconds
        while not steps or perf_counter() < until:
            actions = [self._action(row) for row in self._rows]
            begun = perf_counter()
            self._rows = self.envs.step(actions).obs
            spent += perf_counter() - begun
            steps += self.envs.num_envs
        return steps, spent
