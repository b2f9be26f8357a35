"""Isaac Lab's and mjlab's envs as a vector env of tensors.

Both step all envs at once, return `(obs, reward, terminated, truncated, extras)` with observations in named groups
("policy" or "actor", and often "critic"), and reset an env within the step that ends its episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from surefoot.envs.checks import reset_result, step_result
from surefoot.envs.tensor_envs import FINAL, Simulator
from surefoot.errors import EnvError, UsageError, did_you_mean

if TYPE_CHECKING:
    from surefoot.types import GymSpace, Info

    Observation = Tensor | Mapping[str, "Observation"]
    LabStep = tuple[Observation, Tensor, Tensor, Tensor, Info]

APPROXIMATE = (
    "note: unless the simulator's extras have final_obs, the value at a time limit is that of the observation before "
    "the last step, because the simulator has reset the env by then"
)


NEEDED = ("num_envs", "cfg", "single_observation_space", "single_action_space", "max_episode_length")


class LabConfig(Protocol):
    is_finite_horizon: bool  # the time limit is the end of the task, not an interruption


@runtime_checkable
class OptionalReset(Protocol):
    """The config of an mjlab whose resets can be left to its user."""

    auto_reset: bool


class LabEnv(Protocol):
    """What Isaac Lab's `ManagerBasedRLEnv` and `DirectRLEnv`, and mjlab's `ManagerBasedRlEnv` have in common."""

    @property
    def unwrapped(self) -> LabEnv: ...

    @property
    def num_envs(self) -> int: ...

    @property
    def max_episode_length(self) -> int: ...

    @property
    def cfg(self) -> LabConfig: ...

    @property
    def single_observation_space(self) -> object: ...

    @property
    def single_action_space(self) -> object: ...

    def reset(self, *, seed: int | None = None) -> tuple[Observation, Info]: ...

    def step(self, action: Tensor) -> LabStep: ...

    def close(self) -> object: ...


class PartlyReset(Protocol):
    """An mjlab env that leaves resets to its user."""

    def reset(self, *, env_ids: Tensor) -> tuple[Observation, Info]: ...


@runtime_checkable
class _Parts(Protocol):
    """mjlab's own Dict space."""

    spaces: Mapping[str, object]


@runtime_checkable
class _Shaped(Protocol):
    """mjlab's own Box space."""

    shape: tuple[int, ...]


class LabVectorEnv(Simulator):
    """An env of Isaac Lab or mjlab, ready for `surefoot.train`.

    `groups`: the observation groups to use (default: all); a single one becomes a plain observation. `clip_actions`:
    actions are clipped to ± this number, as these simulators' own action spaces have no bounds.

    The true last observations are `extras["final_obs"]`, if the env gives them, or what an mjlab env with
    `auto_reset=False` returns; it is then reset here. If there are none, the observations before the step stand in.
    """

    def __init__(self, env: LabEnv, *, groups: Sequence[str] | None = None, clip_actions: float | None = None) -> None:
        self.env, self.bare = env, getattr(env, "unwrapped", env)
        if missing := [name for name in NEEDED if not hasattr(self.bare, name)]:
            raise UsageError(
                f"{type(self.bare).__name__} is not an env like those of Isaac Lab and mjlab: "
                f"it has no {', '.join(missing)}"
            )
        self.num_envs, config = self.bare.num_envs, self.bare.cfg
        self.finite_horizon = bool(getattr(config, "is_finite_horizon", False))
        manual = isinstance(config, OptionalReset) and not config.auto_reset
        self.mode = AutoresetMode.DISABLED if manual else AutoresetMode.SAME_STEP
        self.metadata = {"autoreset_mode": self.mode}
        whole = _space(self.bare.single_observation_space, "observation")
        self.groups = _chosen(whole, groups)
        if self.groups is not None:
            assert isinstance(whole, spaces.Dict)
            parts = {name: whole[name] for name in self.groups}
            whole = parts[self.groups[0]] if len(parts) == 1 else spaces.Dict(parts)
        self.single_observation_space = whole
        self.single_action_space = _action_space(_space(self.bare.single_action_space, "action"), clip_actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        known = env.spec if isinstance(env, gym.Env) else None  # of the task that `gym.make` was given
        self.name = type(self.bare).__name__ if known is None else known.id
        self.spec = EnvSpec(id=self.name, max_episode_steps=int(self.bare.max_episode_length))
        self.notes = () if manual else (APPROXIMATE,)
        self._last: Observation = {}
        self._info: Info = {}

    def __repr__(self) -> str:
        return self.name

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Observation, Info]:
        """`options["reset_mask"]`: the envs whose episodes ended, which only an env with manual resets needs."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            obs, self._info = reset_result(self.env.reset(seed=seed), self)
        else:
            assert isinstance(mask, Tensor)
            ids = mask.nonzero().flatten()
            if not len(ids):
                return self._last, self._info
            # Wrappers around an env do not know `env_ids`.
            obs, self._info = cast(PartlyReset, self.bare).reset(env_ids=ids)
        self._last = self._seen(obs)
        return self._last, self._info

    def step(self, actions: Tensor) -> LabStep:
        obs, reward, terminated, truncated, extras = step_result(self.env.step(actions), self)
        info = dict(extras)
        if self.finite_horizon:
            terminated, truncated = terminated.bool() | truncated.bool(), truncated.bool() & ~truncated.bool()
        if self.mode is AutoresetMode.SAME_STEP:
            given = next((extras[name] for name in FINAL if extras.get(name) is not None), None)
            info["final_obs"] = self._last if given is None else self._seen(cast("Observation", given))
        self._last = self._seen(obs)
        return self._last, reward, terminated, truncated, info

    def _seen(self, obs: Observation) -> Observation:
        """The chosen groups, copied: a simulator may write its next observations into the same memory."""
        if self.groups is None or not isinstance(obs, Mapping):
            return self._copied(obs)
        parts = {name: self._copied(obs[name]) for name in self.groups}
        return parts[self.groups[0]] if len(parts) == 1 else parts

    def _copied(self, obs: Observation) -> Observation:
        if isinstance(obs, Tensor):
            return obs.clone()
        if not isinstance(obs, Mapping):
            raise EnvError(f"{self.name} returned observations of type {type(obs).__name__}; they must be tensors")
        return {name: self._copied(part) for name, part in obs.items()}

    def close_extras(self, **kwargs: object) -> None:
        self.env.close()


def _space(given: object, what: str) -> GymSpace:
    """A Gymnasium space; mjlab has spaces of its own, which look the same."""
    if isinstance(given, gym.Space):
        return given
    if isinstance(given, _Parts):
        return spaces.Dict({name: _space(part, what) for name, part in given.spaces.items()})
    if isinstance(given, _Shaped):
        return spaces.Box(-np.inf, np.inf, tuple(given.shape), np.float32)
    raise UsageError(f"the simulator's {what} space is a {type(given).__name__}, which is not a Gymnasium space")


def _chosen(whole: GymSpace, groups: Sequence[str] | None) -> tuple[str, ...] | None:
    """The observation groups to use; None if observations have no groups."""
    if not isinstance(whole, spaces.Dict):
        if groups is not None:
            raise UsageError(f"groups={tuple(groups)}, but the simulator's observations have no groups; drop it")
        return None
    known = list(whole.spaces)
    for name in groups or ():
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"groups: the simulator has no observation group {name!r}{hint} ({', '.join(known)})")
    return tuple(known if groups is None else groups)


def _action_space(given: GymSpace, clip: float | None) -> GymSpace:
    if clip is None:
        return given
    if clip <= 0 or not isinstance(given, spaces.Box):
        raise UsageError(f"clip_actions={clip} does not fit the action space {given}; it needs a Box and a number > 0")
    return spaces.Box(-clip, clip, given.shape, np.float32)
