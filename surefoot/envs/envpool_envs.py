"""EnvPool: many copies of one task stepped by C++ threads. `envpool:CartPole-v1`, `envpool:HalfCheetah-v4`.

A pool is a vector env in NEXT_STEP mode: the step after an episode's end ignores its action and returns the next
episode's first observation, with reward 0 or, from some tasks, the last reward once more. Its seed is fixed when it is
made, and it seeds its episodes itself.
"""

from __future__ import annotations

import importlib
import re
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from surefoot.envs.atari import LIFE_LOST
from surefoot.envs.backends import Backend
from surefoot.envs.ids import ATARI
from surefoot.envs.seeds import derive_seed
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError, UsageError, did_you_mean, user_errors
from surefoot.schema import Record, Whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from surefoot.envs.config import EnvConfig
    from surefoot.schema import Shape
    from surefoot.types import Array, Info

PREFIX = "envpool:"
ENDLESS = 2**31 - 1  # how a pool says that its episodes have no time limit
THREADS = "EnvPool has threads of its own"
FRESH = "EnvPool seeds its episodes itself; a resumed run begins fresh ones"
OURS = {  # arguments of `envpool.make` that users cannot set, and what to do instead
    "num_envs": "set --num-envs",
    "batch_size": "all envs are stepped together",
    "seed": "set --seed",
    "env_seed": "set --seed",
    "env_type": "the gymnasium interface is used",
    "task_id": "name it after envpool:",
    "gym_reset_return_info": "it must stay on",
    "max_episode_steps": "set --max-episode-steps",
    "render_mode": "surefoot video sets it",
    "episodic_life": "a lost life ends what is learned from as it is, and the scores stay those of whole games",
    "reward_clip": "set --sign-rewards, which leaves the reported scores as they are",
}


def known_pools() -> list[str]:
    """Every task of the installed EnvPool."""
    return [str(task) for task in _package().list_all_envs()]


def _package() -> Any:
    try:
        return importlib.import_module("envpool")
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        raise UsageError('EnvPool is not installed: pip install "surefoot[envpool]"') from None


def make_pool(config: EnvConfig, num_envs: int, seed: int, **more: object) -> Pool:
    """The pool of a config; `more` goes to `envpool.make`."""
    _check_settings(config)
    task, package = config.env.removeprefix(PREFIX), _package()
    if task not in (known := known_pools()):
        where = did_you_mean(task, known) or " (python -c 'import envpool; print(envpool.list_all_envs())' lists them)"
        raise UsageError(f"EnvPool has no task '{task}'{where}")
    if config.max_episode_steps is not None:
        more["max_episode_steps"] = config.max_episode_steps
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the rounding of its spaces' bounds
            made = package.make(task, env_type="gymnasium", num_envs=num_envs, seed=seed, **(config.env_kwargs | more))
            return Pool(made, task)
    except ImportError as error:
        raise UsageError(f"{config.env} could not be made: {error}") from None
    except TypeError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"env_kwargs={config.env_kwargs} do not fit {config.env}: {reason}") from None
    except UsageError:
        raise
    except user_errors() as error:
        raise EnvError(f"{config.env} raised {type(error).__name__} while it was made: {error}") from error


def _check_settings(config: EnvConfig) -> None:
    """Refuse settings that would have to be applied inside the pool, instead of ignoring them."""
    for name, instead in OURS.items():
        if name in config.env_kwargs:
            raise UsageError(f"env_kwargs: {name} cannot be given to EnvPool here: {instead}")
    if config.wrappers:
        raise UsageError(
            "wrappers cannot be put around the envs inside of a pool; drop them, or use the env without it"
        )
    if config.frame_stack > 1:
        raise UsageError("frame_stack cannot be put into a pool; tasks that can stack take env_kwargs stack_num")
    if config.workers:
        raise UsageError(f"{THREADS}; drop --workers, and set env_kwargs num_threads if need be")


class Pool(VectorEnv[object, object, "Array"]):
    """An EnvPool as a Gymnasium vector env: true ends, lost lives in info, a time limit in its spec."""

    def __init__(self, pool: Any, task: str) -> None:
        config = pool.config
        if int(config.get("max_num_players", 1)) != 1:
            raise UsageError(f"{PREFIX}{task} has {config['max_num_players']} players; only tasks of one are supported")
        self.pool, self.num_envs = pool, int(config["num_envs"])
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}
        self.single_observation_space, self.single_action_space = pool.observation_space, pool.action_space
        for what, space in (("observation", pool.observation_space), ("action", pool.action_space)):
            if not isinstance(space, gym.Space):
                raise UsageError(f"{PREFIX}{task} has the {what}s {space}, which are not Gymnasium spaces")
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        limit = int(config.get("max_episode_steps", ENDLESS))
        self.limit = limit if limit < ENDLESS else None
        self.spec = EnvSpec(id=task, max_episode_steps=self.limit)
        self._lives = np.zeros(self.num_envs, np.int64)

    def __repr__(self) -> str:
        return f"{PREFIX}{self.spec.id}" if self.spec else PREFIX

    def reset(self, *, seed: object = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        """Ignores `seed`: a pool is seeded when it is made."""
        obs, info = self.pool.reset()
        if "lives" in info:
            self._lives = np.array(info["lives"])
        return obs, info

    def step(self, actions: object) -> tuple[object, Array, Array, Array, Info]:
        obs, reward, terminated, truncated, info = self.pool.step(actions)
        terminated, truncated = told_apart(terminated, truncated, info, self.limit)
        if "lives" in info:
            lives, before = np.array(info["lives"]), self._lives
            info[LIFE_LOST] = (lives > 0) & (lives < before) & ~(terminated | truncated)
            self._lives = lives
        return obs, reward, terminated, truncated, info

    def picture(self) -> Array:
        """`[H, W, 3]` of the first env."""
        return np.asarray(self.pool.render()[0])

    def close_extras(self, **kwargs: object) -> None:
        self.pool.close()
        del self.pool  # its threads end with it


def told_apart(terminated: Array, truncated: Array, info: Info, limit: int | None) -> tuple[Array, Array]:
    """(terminated, truncated), each `[N]`, from how a pool reports the ends of its episodes.

    A pool reports every end at or beyond the time limit as a truncation. Beyond the limit, time cannot have been the
    cause (a few tasks ignore their limit). Atari reports separately whether the game is over.
    """
    done = terminated | truncated
    cut = truncated | np.asarray(info.get("TimeLimit.truncated", False), np.bool_)
    if limit is not None and "elapsed_step" in info:
        elapsed = np.asarray(info["elapsed_step"])
        cut = (cut | (elapsed == limit)) & (elapsed <= limit)
    if "lives" in info and "terminated" in info:
        cut = cut & ~np.asarray(info["terminated"], np.bool_)
    return done & ~cut, done & cut


class PoolEnvs(VectorEnvs):
    """N envs of one pool to train on. Its state cannot be restored: a resumed run starts fresh episodes."""

    notes: tuple[str, ...] = (f"note: {FRESH}, so it is not exact",)

    def __init__(self, config: EnvConfig, num_envs: int, run_seed: int) -> None:
        self._config, self._run_seed, self._starts = config, run_seed, 0
        pool = self._pool(num_envs)
        try:
            super().__init__(pool, run_seed)
        except BaseException:
            pool.close()
            raise
        self.observations: Array = np.zeros((num_envs, *self.layout.shape), self.layout.dtype)
        self.render_modes: tuple[str, ...] = tuple(pool.metadata["render_modes"])

    def _pool(self, num_envs: int) -> Pool:
        return make_pool(self._config, num_envs, self._pool_seed)

    @property
    def _pool_seed(self) -> int:
        return derive_seed(self._run_seed, "envpool", self._starts)

    def __str__(self) -> str:
        return f"{self.envs} (seed {self._pool_seed}, step {self._steps})"

    def state_dict(self) -> dict[str, int]:
        return {"starts": self._starts}

    def state_shape(self) -> Shape:
        return Record(starts=Whole())

    def load_state_dict(self, state: Mapping[str, object], last_obs: Array) -> list[int]:
        """Make a pool with another seed, or the run would repeat its first episodes. All open episodes are lost."""
        starts = state["starts"]
        assert isinstance(starts, int)  # checked by `state_shape`
        self._starts = starts + 1
        self.envs.close()
        self.envs, self._begun = self._pool(self.num_envs), None
        self.observations = self.reset()
        return list(range(self.num_envs))


class PoolEnv(gym.Env[object, object]):
    """One env for evaluations, videos and the doctor: a new pool of one env for every seed."""

    def __init__(self, config: EnvConfig, render_mode: str | None = None) -> None:
        self._config, self.render_mode = config, render_mode
        self._pool = self._make(0)
        self.observation_space = self._pool.single_observation_space
        self.action_space = self._pool.single_action_space
        # Gymnasium's checker needs a spec from which it can make the env again.
        self.spec = EnvSpec(
            id=config.env.removeprefix(PREFIX),
            entry_point=partial(PoolEnv, config),
            max_episode_steps=self._pool.limit,
        )
        self.metadata = {"render_modes": ["rgb_array"]}

    def _make(self, seed: int) -> Pool:
        more = {"render_mode": self.render_mode} if self.render_mode else {}
        return make_pool(self._config, 1, seed, **({"num_threads": 1} | more))

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[object, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed)
        obs, info = self._pool.reset()
        return _only(obs), _only(info)

    def step(self, action: object) -> tuple[object, float, bool, bool, Info]:
        empty: Any = gym.vector.utils.create_empty_array(self.action_space, 1)
        batch = gym.vector.utils.concatenate(self.action_space, [action], empty)
        obs, reward, terminated, truncated, info = self._pool.step(batch)
        return _only(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _only(info)

    def render(self) -> Array:
        return self._pool.picture()

    def close(self) -> None:
        self._pool.close()


def _only(value: Any) -> Any:
    """What a batch of one holds."""
    if isinstance(value, dict):
        return {key: _only(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_only(inner) for inner in value)
    return np.array(value[0]) if np.ndim(value) > 1 else value[0]


class EnvPool(Backend):
    """`envpool:ID`: a task of the installed EnvPool, looked up by name."""

    name = "envpool"
    no_workers = THREADS
    fresh_episodes = FRESH
    own_time_limit = True

    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> PoolEnv:
        return PoolEnv(config, render_mode)

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> PoolEnvs:
        return PoolEnvs(config, num_envs, derive_seed(seed, "envs from", first) if first else seed)

    def code(self, env_id: str) -> str:
        return ""

    def preset_ids(self, env_id: str) -> tuple[str, ...]:
        """Gymnasium's ids of the same task. EnvPool's Atari games are all of version 5, as are some of MuJoCo's."""
        task = env_id.removeprefix(PREFIX)
        return (task, f"{ATARI}{task}") if re.fullmatch(r"\w+-v5", task) else (task,)
