"""Compares our own versions of Gymnasium's envs with Gymnasium's, bit for bit, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import gymnasium as gym
import numpy as np

from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.types import Array, Envs, Info, Step

E = TypeVar("E", bound="Envs")
_COMPARED: dict[str, str] = {}  # results of earlier comparisons in this process


def compared_once(config: EnvConfig, compare: Callable[[], str | None]) -> str:
    """What `compare` finds about the envs of a config; empty if nothing. It is asked once per process."""
    key = repr((config, gym.registry[config.env]))
    if key not in _COMPARED:
        _COMPARED[key] = compare() or ""
    return _COMPARED[key]


def plays_differ(
    config: EnvConfig,
    ours: E,
    actions: Callable[[Array], Array],
    states_differ: Callable[[GymEnvs, E], str | None],
    steps: int,
) -> str | None:
    """How `ours`, whose run seed is 0, differ from Gymnasium's; None if no difference was found.

    `actions`: those that follow observations `[N, ...]`.
    """
    with closing(GymEnvs(lambda: make_env(config), ours.num_envs, 0)) as theirs:
        obs = theirs.reset()
        if not same_bits(obs, ours.reset()):
            return f"the first observations of {config.env} differ from Gymnasium's"
        for number in range(1, steps + 1):
            action = actions(obs)
            step = theirs.step(action)
            difference = steps_differ(step, ours.step(action)) or states_differ(theirs, ours)
            if difference is not None:
                return f"{difference} of {config.env} differ from Gymnasium's after {number} steps"
            obs = step.obs
    return None


def steps_differ(a: Step, b: Step) -> str | None:
    """The first field in which two steps differ in any bit."""
    for name in ("obs", "reward", "terminated", "truncated", "valid"):
        if not same_bits(getattr(a, name), getattr(b, name)):
            return name
    finals = (a.final_obs.keys() == b.final_obs.keys()) and all(
        same_bits(a.final_obs[index], b.final_obs[index]) for index in a.final_obs
    )
    if not finals:
        return "final_obs"
    infos = (a.final_info.keys() == b.final_info.keys()) and all(
        same_info(a.final_info[index], b.final_info[index]) for index in a.final_info
    )
    return None if infos else "final_info"


def same_info(a: Info, b: Info) -> bool:
    """The same names and values; arrays are compared as a whole."""
    return a.keys() == b.keys() and all(np.array_equal(np.asarray(a[name]), np.asarray(b[name])) for name in a)


def same_bits(a: Array, b: Array) -> bool:
    """Equal in type, shape and bytes: 0 and −0 differ, a NaN equals itself."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
