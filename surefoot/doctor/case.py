"""The env under examination, and the findings of the checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from surefoot.doctor.report import Finding, Level, Report, typed_flags
from surefoot.envs.gym_envs import time_limit
from surefoot.envs.make import make_env
from surefoot.envs.masks import MaskReader, method_of
from surefoot.envs.random_play import legal_action
from surefoot.errors import EnvError

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import Factory
    from surefoot.types import GymEnv, GymSpace, Info


SEED = 0


class Case:
    """Call `look` first: it makes an env and finds out what it is."""

    def __init__(self, config: EnvConfig, factory: Factory | None) -> None:
        self.config, self.factory = config, factory
        self.report = Report(config.env, config.env, typed=typed_flags(config))
        self.seen: dict[str, tuple[Finding, int]] = {}  # faults of single steps: the first of each kind, and how many
        self.wanted: dict[str, str] = {}  # flag -> value

    def look(self) -> None:
        with closing(self.make()) as env:
            self.observation_space, self.action_space = env.observation_space, env.action_space
            self.masks = MaskReader(self.action_space, None)  # until the first reset shows
            self.limit, self.metadata = time_limit(env), dict(env.metadata or {})
            inner = env.unwrapped
            limit = "no time limit" if self.limit is None else f"at most {self.limit:,} steps per episode"
            self.report.described = (
                f"{self.config.env or 'env'}: {type(inner).__module__}.{type(inner).__name__}, {limit}"
            )
            self.report.numbers["time_limit"] = self.limit

    def make(self) -> GymEnv:
        return make_env(self.config, self.factory)

    def find(self, level: Level, what: str, advice: str = "") -> None:
        self.report.findings.append(Finding(level, what, advice))

    def once(self, key: str, level: Level, what: str, advice: str = "") -> None:
        """Record a fault that may recur at every step."""
        first, times = self.seen.get(key, (Finding(level, what, advice), 0))
        self.seen[key] = first, times + 1

    def action(self, env: GymEnv, obs: object, info: Info, rng: np.random.Generator) -> object:
        """A random action, legal if there is a mask."""
        space = env.action_space
        if self.masks.source is None:
            return space.sample()
        try:
            row = self.masks.row(obs, info, method_of(env))
        except (ValueError, TypeError, KeyError) as error:
            self.once("mask", "error", f"the action mask is not valid: {error}", f"the action space is {space}")
            return space.sample()
        return legal_action(space, row, rng)


def reset(env: GymEnv, seed: int) -> tuple[object, Info]:
    found: object = env.reset(seed=seed, options=None)
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], dict):
        raise EnvError(f"reset returned {_got(found, 2)}; it must return two: (observation, info), the info a dict")
    return found


def step(env: GymEnv, action: object) -> tuple[object, object, object, object, Info]:
    found: object = env.step(action)
    if not isinstance(found, tuple) or len(found) != 5 or not isinstance(found[4], dict):
        raise EnvError(
            f"step returned {_got(found, 5)}; it must return five: "
            "(observation, reward, terminated, truncated, info), the info a dict"
        )
    return found


def _got(found: object, count: int) -> str:
    if not isinstance(found, tuple):
        return type(found).__name__
    return f"{len(found)} values" if len(found) != count else ", ".join(type(one).__name__ for one in found)


def walk(space: GymSpace, value: Any, path: str = "") -> Iterator[tuple[str, GymSpace, object]]:
    """(path, space, value) of every leaf."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space, value
        return
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, part in parts:
        yield from walk(part, value[key], f"{path}/{key}" if path else str(key))
