"""The Python side of the native classic-control environments (`src/classic.hpp`); Gymnasium's are the reference."""

from __future__ import annotations

import weakref
from ctypes import CDLL, addressof, byref, c_char_p, c_double, c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from surefoot.kernels.calls import Library, Signatures
from surefoot.kernels.library import load

if TYPE_CHECKING:
    from surefoot.types import Array

FUNCTIONS = ("sin", "cos", "square", "remainder", "sin32", "cos32", "square32")  # in the same order as in classic.cpp


@dataclass(frozen=True)
class Kind:
    """One of the environments, with its number in C++."""

    name: str
    number: int
    num_state: int
    num_obs: int
    num_actions: int  # 0: the action is one float32

    @property
    def action_dtype(self) -> type[np.int64] | type[np.float32]:
        return np.int64 if self.num_actions else np.float32

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action."""
        return () if self.num_actions else (1,)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("CartPole", 0, 4, 4, 2),
        Kind("Pendulum", 1, 2, 3, 0),
        Kind("Acrobot", 2, 4, 6, 3),
        Kind("MountainCar", 3, 2, 2, 3),
        Kind("MountainCarContinuous", 4, 2, 2, 0),
    )
}


@dataclass(frozen=True)
class Params:
    """The keyword arguments of all constructors; each env uses its own."""

    g: float = 10.0
    goal_velocity: float = 0.0
    sutton_barto_reward: bool = False


_pointer, _int64, _int, _double, _text = c_void_p, c_int64, c_int, c_double, c_char_p
SIGNATURES: Signatures = {  # functions of classic.cpp; pointers are passed as addresses
    "create": [_int, _int64, _text, _int64, _double, _double, _int, _int64, _int64, _pointer],
    "destroy": [_pointer],
    "sizes": [_int, _pointer],
    "reset": [_pointer, _pointer],
    "begin": [_pointer, _int64, _int64, c_uint64, _pointer],
    "step": [_pointer] * 9,
    "where": [_pointer, _pointer, _pointer],
    "num_remembered": [_pointer, _int64, _pointer],
    "remembered": [_pointer, _int64, _pointer],
    "replay": [_pointer, _int64, _int64, _pointer, _int64, _pointer, _pointer],
    "get_state": [_pointer, _int64, _pointer],
    "set_state": [_pointer, _int64, _int64, _int64, _pointer, _pointer],
    "episode_seed": [_text, _int64, _int64, _pointer],
    "random": [c_uint64, _pointer, _int64],
    "function": [_int, _pointer, _pointer, _int64],
}


@cache
def classic_library() -> Library:
    """The library that was built with the package; NotBuilt if there is none."""
    return declare(load("classic"))


def declare(library: CDLL) -> Library:
    return Library(library, "surefoot_classic_", SIGNATURES)


def apply(library: Library, function: str, x: Array) -> Array:
    """Apply one of `FUNCTIONS` as the environments compute it, to float64 (rounded to float32 for the last three)."""
    x = np.ascontiguousarray(x, np.float64)
    y = np.empty_like(x)
    library.function(FUNCTIONS.index(function), x.ctypes.data, y.ctypes.data, x.size)
    return y


class ClassicEnvs:
    """N native envs of one kind. The arrays are allocated once and overwritten by each step.

    `first`: the index of the first one in the whole run, for the seeds.
    """

    def __init__(
        self,
        library: Library,
        kind: Kind,
        num_envs: int,
        run_seed: int,
        *,
        first: int = 0,
        params: Params | None = None,
        time_limit: int | None = None,
        longest_replay: int = 0,
    ) -> None:
        self.library, self.kind, self.num_envs = library, kind, num_envs
        params = params or Params()
        created = c_void_p()
        library.create(
            kind.number,
            num_envs,
            str(int(run_seed)).encode(),
            first,
            params.g,
            params.goal_velocity,
            int(params.sutton_barto_reward),
            time_limit or 0,
            longest_replay,
            byref(created),
        )
        assert created.value is not None
        self.handle = created.value  # passed to C functions that step these envs themselves
        self._destroy = weakref.finalize(self, library.destroy, self.handle)
        self.action = np.zeros((num_envs, *kind.action_shape), kind.action_dtype)
        self.active = np.ones(num_envs, np.bool_)
        self.obs = np.zeros((num_envs, kind.num_obs), np.float32)
        self.final_obs = np.zeros((num_envs, kind.num_obs), np.float32)
        self.reward = np.zeros(num_envs, np.float64)
        self.terminated, self.truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        arrays = (self.obs, self.reward, self.terminated, self.truncated, self.final_obs)
        self._results = tuple(array.ctypes.data for array in arrays)
        self._action, self._active = self.action.ctypes.data, self.active.ctypes.data
        self._step, self._ended = library.step, c_int64()
        self._results += (addressof(self._ended),)

    def reset(self) -> None:
        """Reset every env to the start of its next episode; fills `obs`."""
        self._require_open()
        self.library.reset(self.handle, self._results[0])

    def begin(self, env: int, episode: int, seed: int) -> None:
        """Reset one env to an episode with this seed; fills `obs`. Its next episode uses its own seed again."""
        self._require(env)
        self.library.begin(self.handle, env, episode, seed, self.obs[env].ctypes.data)

    def step(self, *, masked: bool = False) -> int:
        """Step with `action`, only the `active` envs if `masked`; fills the arrays.

        Returns how many episodes ended, or −1 − i if the step of env i failed: an illegal action, or a reward or an
        observation that is not finite. Envs after it have not been stepped.
        """
        self._require_open()
        self._step(self.handle, self._action, self._active if masked else None, *self._results)
        return self._ended.value

    def where(self) -> tuple[list[int], list[int]]:
        """(numbers of the open episodes, steps taken in them)."""
        self._require_open()
        episode, steps = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, np.int64)
        self.library.where(self.handle, episode.ctypes.data, steps.ctypes.data)
        return episode.tolist(), steps.tolist()

    def remembered(self, env: int) -> Array:
        """The actions of an env's open episode, `[steps, ...]`; fewer if it is longer than `longest_replay`."""
        self._require(env)
        count = c_int64()
        self.library.num_remembered(self.handle, env, byref(count))
        actions = np.zeros((count.value, *self.kind.action_shape), self.kind.action_dtype)
        self.library.remembered(self.handle, env, actions.ctypes.data)
        return actions

    def replay(self, env: int, episode: int, actions: Array) -> bool:
        """Bring an env to the state of `episode` after these actions; False if the episode ends before."""
        self._require(env)
        if actions.dtype != self.kind.action_dtype or actions.shape != (len(actions), *self.kind.action_shape):
            return False
        actions = np.ascontiguousarray(actions)
        obs = self.obs[env].ctypes.data
        came = c_int()
        self.library.replay(self.handle, env, episode, actions.ctypes.data, len(actions), obs, byref(came))
        return bool(came.value)

    def get_state(self, env: int) -> Array:
        """The float64 numbers that Gymnasium's env keeps as its state."""
        self._require(env)
        state = np.zeros(self.kind.num_state, np.float64)
        self.library.get_state(self.handle, env, state.ctypes.data)
        return state

    def set_state(self, env: int, episode: int, steps: int, state: Array) -> None:
        """Put an env into a state, `steps` steps into `episode`. Its actions so far are then unknown."""
        self._require(env)
        if np.shape(state) != (self.kind.num_state,):
            raise ValueError(f"a state of {self.kind.name} is {self.kind.num_state} numbers, not {np.shape(state)}")
        state = np.ascontiguousarray(state, np.float64)
        obs = self.obs[env].ctypes.data
        self.library.set_state(self.handle, env, episode, steps, state.ctypes.data, obs)

    def close(self) -> None:
        self._destroy()

    def _require_open(self) -> None:
        if not self._destroy.alive:
            raise ValueError("these envs are closed")

    def _require(self, env: int) -> None:
        self._require_open()
        if not 0 <= env < self.num_envs:
            raise IndexError(f"there is no env {env} among {self.num_envs}")
