"""A ready-made `gymnasium.vector.VectorEnv`, in any of Gymnasium's three autoreset modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.envs.checks import check_action_space, require_finite
from surefoot.envs.seeds import derive_seed
from surefoot.errors import UsageError
from surefoot.types import Step

if TYPE_CHECKING:
    from surefoot.types import Array


class VectorEnvs:
    """Adapts the three modes to one contract.

    * SAME_STEP: the true last observation is in `info["final_obs"]`.
    * DISABLED: the observation itself is the last one; we reset those envs at once.
    * NEXT_STEP: the observation itself is the last one; the following step is a reset that ignores its action and
      returns reward 0. That step is no transition and is marked invalid; the next episode's first observation is its.

    A vector env draws its episodes from one seed, so a run on it cannot be resumed exactly.
    """

    exact_seeds = False

    def __init__(self, envs: VectorEnv[Any, Any, Any], run_seed: int) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise UsageError(
                f"{envs} does not declare its autoreset mode, so its episode ends cannot be told apart; "
                "set metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode"
            )
        self.envs, self.mode, self.num_envs = envs, mode, envs.num_envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        check_action_space(self.action_space)
        self.time_limit = envs.spec.max_episode_steps if envs.spec else None
        self._seed = derive_seed(run_seed, "vector")
        self._fresh = False
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._names = [f"vector env, index {i}" for i in range(self.num_envs)]

    def reset(self) -> Array:
        obs, _ = self.envs.reset(seed=None if self._fresh else self._seed)
        self._fresh = True  # later resets go on with the env's own generator
        self._ended[:] = False
        require_finite(np.asarray(obs), "observation", self._names)
        return np.array(obs)

    def step(self, action: Array, active: Array | None = None) -> Step:
        """A vector env steps all or none: inactive envs are stepped too and their step is marked invalid."""
        obs, reward, terminated, truncated, info = self.envs.step(action)
        obs, reward = np.array(obs), np.array(reward, np.float64)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        valid = ~self._ended if self.mode is AutoresetMode.NEXT_STEP else np.ones(self.num_envs, np.bool_)
        done = terminated | truncated
        final_obs = {int(i): self._final_obs(obs, info, int(i)) for i in np.flatnonzero(done)}
        final_info = {i: self._final_info(info, i) for i in final_obs}
        if self.mode is AutoresetMode.DISABLED and done.any():
            fresh, _ = self.envs.reset(options={"reset_mask": done})
            obs[done] = np.asarray(fresh)[done]
        self._ended = done
        if active is not None:
            valid &= active
        require_finite(reward, "reward", self._names)
        require_finite(obs, "observation", self._names)
        for i, last in final_obs.items():
            require_finite(last[None], "final observation", [self._names[i]])
        return Step(obs, reward, terminated, truncated, valid, final_obs, final_info)

    def _final_obs(self, obs: Array, info: dict[str, Any], index: int) -> Array:
        if self.mode is not AutoresetMode.SAME_STEP:
            return np.array(obs[index])
        if "final_obs" not in info:
            raise UsageError(f"{self.envs} declares SAME_STEP autoreset but gives no info['final_obs']")
        return np.array(info["final_obs"][index])

    def _final_info(self, info: dict[str, Any], index: int) -> dict[str, Any]:
        """The last step's info of one env, out of Gymnasium's column layout."""
        columns = info.get("final_info", info) if self.mode is AutoresetMode.SAME_STEP else info
        return {
            name: column[index]
            for name, column in columns.items()
            if not name.startswith("_") and isinstance(column, np.ndarray) and len(column) == self.num_envs
        }

    def close(self) -> None:
        self.envs.close()
