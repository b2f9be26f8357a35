"""A ready-made `gymnasium.vector.VectorEnv`, in any of Gymnasium's three autoreset modes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.checks import (
    as_flag,
    blamed,
    require_finite,
    require_kind,
    reset_result,
    step_result,
    supported_spaces,
)
from surefoot.envs.masks import MaskReader, vector_method
from surefoot.envs.seeds import derive_seed
from surefoot.errors import EnvError, UsageError
from surefoot.spaces.layout import MASK, Layout
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.types import Array, GymVectorEnv, Info


def declared_mode(envs: GymVectorEnv) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise UsageError(
            f"{envs} does not declare its autoreset mode, so its episode ends cannot be told apart; "
            "set metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode"
        )
    return mode


def final_columns(info: Info, mode: AutoresetMode) -> object:
    """Where the infos of last steps are; nothing if an env says None."""
    found = info.get("final_info", info) if mode is AutoresetMode.SAME_STEP else info
    return {} if found is None else found


def vector_seed(run_seed: int) -> int:
    """The seed of a vector env's first reset."""
    return derive_seed(run_seed, "vector")


class VectorEnvs:
    """Adapts the three modes to one contract.

    * SAME_STEP: the true last observation is in `info["final_obs"]`.
    * DISABLED: the observation itself is the last one; we reset those envs at once.
    * NEXT_STEP: the observation itself is the last one; the following step is a reset that ignores its action and
      returns reward 0. That step is not a transition and is marked invalid; it holds the next first observation.

    A vector env draws its episodes from one seed, so a run on it cannot be resumed exactly.
    """

    exact_seeds, batched_actions = False, True
    render_modes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ("note: a ready-made vector env has one seed for all its episodes",)

    def __init__(self, envs: GymVectorEnv, run_seed: int, begun: tuple[object, Info] | None = None) -> None:
        """`begun`: what the first reset returned, if it has already happened."""
        self.envs, self.mode, self.num_envs = envs, declared_mode(envs), envs.num_envs
        self.observation_space, self.action_space = supported_spaces(envs, "single_")
        self.time_limit = envs.spec.max_episode_steps if envs.spec else None
        self._seed, self._begun = vector_seed(run_seed), begun
        self._fresh, self._steps = begun is not None, 0
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._names = [f"vector env, index {i}" for i in range(self.num_envs)]
        self._method = vector_method(envs)
        self.masks = MaskReader.find(
            self.observation_space, self.action_space, method=lambda: self._method is not None, in_info=self._asked
        )
        self.layout = Layout(self.observation_space, self.masks.size)

    def __str__(self) -> str:
        return f"{self.envs} (seed {self._seed}, step {self._steps})"

    def _asked(self) -> bool:
        """Whether the first reset's info has masks."""
        self._begun = self._begun or self._reset()
        return MASK in self._begun[1]

    def _reset(self, **how: Any) -> tuple[object, Info]:
        with blamed("reset", self):
            obs, info = reset_result(self.envs.reset(seed=None if self._fresh else self._seed, **how), self)
        self._fresh = True  # later resets continue the env's own generator
        return obs, info

    def reset(self) -> Array:
        obs, info = self._begun or self._reset()
        self._begun = None
        self._ended[:] = False
        rows = self._rows(obs, info, np.zeros(self.num_envs, np.bool_))
        require_finite(rows, "observation", self._names)
        return rows

    def _rows(self, obs: object, info: Info, ended: Array) -> Array:
        """`[N, ...]` rows. Where an episode `ended`, the mask does not matter."""
        mask = None
        if self.masks.source is not None:
            with blamed("action_masks", self) if self.masks.source == "method" else nullcontext():
                given = self.masks.given(obs, info, self._method, always=False)
            mask = np.ones((self.num_envs, self.masks.size), np.bool_)
            for index in np.flatnonzero(~ended):
                try:
                    mask[index] = self.masks.flat(None if given is None else given[index])
                except (ValueError, TypeError) as error:
                    raise EnvError(f"{self._names[index]}: {error}") from error
        wanted = (self.num_envs, *self.layout.shape)
        try:
            rows: Array = np.array(self.layout.pack_batch(obs, self.num_envs, mask))
            if rows.shape != wanted:
                raise ValueError(f"they have the shape {rows.shape}, not {wanted}")
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(f"{self} returned observations that are not in its space: {error}") from error
        require_kind(rows.dtype, self.layout, self)
        return rows

    def step(self, action: object, active: Array | None = None) -> Step:
        """A vector env steps all or none: inactive envs are stepped too and their step is marked invalid."""
        self._steps += 1
        with blamed("step", self):
            raw, pay, ended, cut, info = step_result(self.envs.step(action), self)
        reward = self._column(pay, "rewards").astype(np.float64)
        terminated, truncated = self._flags(ended, "terminated"), self._flags(cut, "truncated")
        valid = ~self._ended if self.mode is AutoresetMode.NEXT_STEP else np.ones(self.num_envs, np.bool_)
        done = terminated | truncated
        same_step = self.mode is AutoresetMode.SAME_STEP
        obs = self._rows(raw, info, np.zeros_like(done) if same_step else done)
        final_obs = {int(i): self._final_obs(obs, info, int(i)) for i in np.flatnonzero(done)}
        final_info = {i: self._final_info(info, i) for i in final_obs}
        if self.mode is AutoresetMode.DISABLED and done.any():
            fresh, fresh_info = self._reset(options={"reset_mask": done})
            obs[done] = self._rows(fresh, fresh_info, ~done)[done]
        first = self._ended if self.mode is AutoresetMode.NEXT_STEP else done
        self._ended = done
        if active is not None:
            valid &= active
        require_finite(reward, "reward", self._names)
        require_finite(obs, "observation", self._names)
        for i, last in final_obs.items():
            require_finite(last[None], "final observation", [self._names[i]])
        lost = info.get(LIFE_LOST)
        life_lost = None if lost is None else np.asarray(lost, np.bool_) & valid & ~done
        return Step(obs, reward, terminated, truncated, valid, final_obs, final_info, life_lost, first)

    def _column(self, values: object, what: str) -> Array:
        """`[N]` numbers, a copy. (Another shape might be broadcast somewhere, silently.)"""
        try:
            column: Array = np.array(values)
        except (ValueError, TypeError) as error:
            raise EnvError(f"{self} returned {what} that are not numbers: {error}") from error
        if column.shape != (self.num_envs,):
            raise EnvError(f"{self} returned {what} of the shape {column.shape}; it must be {(self.num_envs,)}")
        if column.dtype.kind not in "fiub":
            raise EnvError(f"{self} returned {what} that are not numbers, but of {column.dtype}: {column[:8]}")
        return column

    def _flags(self, values: object, what: str) -> Array:
        """`[N]` bool, a copy."""
        column = np.array(values)
        if column.dtype == np.bool_ and column.shape == (self.num_envs,):
            return column
        if column.shape == (self.num_envs,):
            return np.array([as_flag(flag, what, name) for flag, name in zip(column, self._names, strict=True)])
        return self._column(values, what)  # raises with a message about what is wrong

    def _final_obs(self, obs: Array, info: dict[str, Any], index: int) -> Array:
        if self.mode is not AutoresetMode.SAME_STEP:
            return np.array(obs[index])
        if "final_obs" not in info:
            raise UsageError(f"{self.envs} declares SAME_STEP autoreset but gives no info['final_obs']")
        try:
            return np.array(self.layout.pack(info["final_obs"][index], self.masks.free))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EnvError(
                f"{self._names[index]}: info['final_obs'] has no observation of the env's space where its episode "
                f"ended: {error}"
            ) from error

    def _final_info(self, info: dict[str, Any], index: int) -> Info:
        """One env's info of the last step, extracted from Gymnasium's column layout."""
        columns = final_columns(info, self.mode)
        if isinstance(columns, (list, tuple, np.ndarray)):  # a dict for each env, as Gymnasium had them before 1.0
            own = columns[index] if len(columns) == self.num_envs else None
            return dict(own) if isinstance(own, Mapping) else {}
        if not isinstance(columns, Mapping):
            return {}
        return {
            name: column[index]
            for name, column in columns.items()
            if not name.startswith("_") and isinstance(column, np.ndarray) and len(column) == self.num_envs
        }

    def close(self) -> None:
        with blamed("close", self):
            self.envs.close()
