"""What Gymnasium's MuJoCo-v5 envs have in common, and sums that give the same bits for N rows as for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from surefoot.envs.mujoco.task import MujocoTask

if TYPE_CHECKING:
    import mujoco

    from surefoot.envs.mujoco.batch import Simulations
    from surefoot.types import Array, Info

Range: TypeAlias = tuple[float, float]


class Arguments:
    """The arguments of an env's constructor, by name. Their types were checked."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given

    def number(self, name: str) -> float:
        """The number as it was given: an int stays an int, because NumPy treats it differently."""
        value = self._given[name]
        assert isinstance(value, int | float)
        return value

    def flag(self, name: str) -> bool:
        return self._given[name] is True

    def range(self, name: str) -> Range:
        value = self._given[name]
        assert isinstance(value, list | tuple)
        low, high = value
        return low, high

    def body(self, name: str) -> int | str:
        value = self._given[name]
        assert isinstance(value, int | str)
        return value


class V5Task(MujocoTask):
    """A task of Gymnasium, on the model that Gymnasium made. `reward` sets `gains` and `costs`, columns for `info`."""

    def __init__(self, model: mujoco.MjModel, frame_skip: int, arguments: Arguments) -> None:
        self._model, self.frame_skip, self.arguments = model, frame_skip, arguments
        self.gains: dict[str, Array] = {}
        self.costs: dict[str, Array] = {}  # shown with the opposite sign
        self.read(arguments)

    def make_model(self) -> mujoco.MjModel:
        return self._model

    def connect(self, sims: Simulations) -> None:
        self.step_seconds = sims.model.opt.timestep * self.frame_skip
        super().connect(sims)

    def read(self, arguments: Arguments) -> None:
        """Read the arguments into attributes."""

    def info(self, env: int) -> Info:
        costs = {name: -column[env] for name, column in self.costs.items()}
        return {name: column[env] for name, column in self.gains.items()} | costs


def noise(rng: np.random.Generator, scale: float, size: int) -> Array:
    return rng.uniform(low=-scale, high=scale, size=size)


def sum_of_squares(rows: Array) -> Array:
    """`np.sum(np.square(row))` of each row, in the type of the rows."""
    total: Array = np.add.reduce(np.square(rows), axis=1)
    return total


def norms(rows: Array) -> Array:
    """`np.linalg.norm(row)` of each row, which is the root of a dot product."""
    lengths: Array = np.sqrt(np.vecdot(rows, rows))
    return lengths


def within(values: Array, bounds: Range) -> Array:
    """`low < value < high`."""
    low, high = bounds
    inside: Array = (low < values) & (values < high)
    return inside


def joined(parts: list[Array]) -> Array:
    """A buffer `[N, size]` for rows made of these parts."""
    return np.empty((len(parts[0]), sum(part.shape[1] for part in parts)))
