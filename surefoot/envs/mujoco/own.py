"""A user's own `MujocoTask`, named as `file.py:Class`: many envs to train in, or one to evaluate and film."""

from __future__ import annotations

from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.envs.mujoco.batch import NoBatch, Simulations, check_callbacks
from surefoot.envs.mujoco.envs import Facts, MujocoEnvs
from surefoot.envs.mujoco.task import MujocoTask
from surefoot.errors import UsageError

if TYPE_CHECKING:
    import mujoco
    from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

    from surefoot.envs.config import EnvConfig
    from surefoot.types import Array, GymEnv, Info


def is_task(made: object) -> TypeGuard[type[MujocoTask]]:
    """Whether what the user named is a class of tasks."""
    return isinstance(made, type) and issubclass(made, MujocoTask)


def many_envs(config: EnvConfig, made: object, num_envs: int, seed: int, first: int = 0) -> MujocoEnvs | None:
    """All envs of a run, if `made` is a class of tasks and no setting needs the envs one by one."""
    if not is_task(made) or config.one_by_one:
        return None
    task = made(**config.env_kwargs)
    one = _Connected(task)
    limit = config.max_episode_steps or task.time_limit
    facts = Facts(made.__name__, one.model, one.observation_space, one.action_space, limit)
    return MujocoEnvs(task, facts, num_envs, seed, first)


def own_env(config: EnvConfig, made: type[MujocoTask], render_mode: str | None) -> GymEnv:
    """One env, with its time limit."""
    task = made(**config.env_kwargs)
    env, limit = TaskEnv(task, render_mode), config.max_episode_steps or task.time_limit
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


class _Connected:
    """A task with one simulation, and its spaces."""

    def __init__(self, task: MujocoTask) -> None:
        check_numbers(task)
        self.task, self.model = task, model_of(task)
        before = contents(self.model)
        try:
            self.sims = Simulations(self.model, 1, contact_forces=task.contact_forces)
            task.connect(self.sims)
            check_callbacks()  # which `prepare` may have installed
        except NoBatch as error:
            raise UsageError(f"{type(task).__name__} needs MuJoCo's batch: {error}") from None
        self.begin(np.random.default_rng(0))
        shown = self.observe()
        if contents(self.model) != before:
            raise UsageError(
                f"{type(task).__name__} changes its model in prepare or start, which has no effect: the simulations "
                "have copies of it. Change it in make_model"
            )
        self.observation_space = spaces.Box(-np.inf, np.inf, shown.shape, shown.dtype.type)
        self.action_space = action_space(self.model)

    def begin(self, rng: np.random.Generator) -> None:
        self.sims.reset()
        self.sims.qpos[0], self.sims.qvel[0] = self.task.first_state(0, rng)
        self.sims.forward()

    def observe(self) -> Array:
        """A copy of the only row."""
        rows = np.asarray(self.task.observe())
        if rows.ndim != 2 or len(rows) != 1 or rows.dtype not in (np.float32, np.float64):
            raise UsageError(
                f"{type(self.task).__name__}.observe returned {rows.dtype} {rows.shape} for one env; it must return "
                "an array of floats with a row for each env, [N, size]"
            )
        row: Array = rows[0].copy()
        return row


def check_numbers(task: MujocoTask) -> None:
    """MuJoCo would end the process if `frame_skip` were 0."""
    name, limit = type(task).__name__, task.time_limit
    for what, value in {"frame_skip": task.frame_skip, **({} if limit is None else {"time_limit": limit})}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name}.{what}={value!r}; it must be a whole number of at least 1")


def model_of(task: MujocoTask) -> mujoco.MjModel:
    if find_spec("mujoco") is None:
        raise UsageError(f'{type(task).__name__} needs MuJoCo: pip install "surefoot[mujoco]"')
    from mujoco import MjModel, MjSpec

    model = task.make_model()
    if not isinstance(model, MjModel):
        advice = "; spec.compile() makes one" if isinstance(model, MjSpec) else ""
        raise UsageError(
            f"{type(task).__name__}.make_model returned {type(model).__name__}; it must return an MjModel{advice}"
        )
    return model


def contents(model: mujoco.MjModel) -> bytes:
    """A digest of all numbers of a model."""
    from mujoco import mj_saveModel, mj_sizeModel

    saved = np.zeros(mj_sizeModel(model), np.uint8)
    mj_saveModel(model, None, saved)
    return sha256(saved.tobytes()).digest()


def action_space(model: mujoco.MjModel) -> spaces.Box:
    """The range of each actuator; without limits where the model sets none."""
    low, high = model.actuator_ctrlrange.astype(np.float32).T
    limited = model.actuator_ctrllimited.astype(np.bool_)
    return spaces.Box(np.where(limited, low, -np.inf), np.where(limited, high, np.inf), dtype=np.float32)


class TaskEnv(gym.Env["Array", "Array"]):
    """One env of a task as Gymnasium knows them."""

    def __init__(self, task: MujocoTask, render_mode: str | None = None) -> None:
        self.task, self.render_mode, self._one = task, render_mode, _Connected(task)
        self.observation_space, self.action_space = self._one.observation_space, self._one.action_space
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, round(1.0 / task.dt))}
        self._drawing: tuple[mujoco.MjData, MujocoRenderer] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        super().reset(seed=seed)
        self._one.begin(self.np_random)
        return self._one.observe(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, Info]:
        task, sims = self.task, self._one.sims
        rows = np.asarray(action, np.float32)[None]
        task.before_step()
        sims.ctrl[...] = rows
        sims.step(task.frame_skip)
        obs, reward, ended = self._one.observe(), task.reward(rows), task.terminated()
        return obs, float(reward[0]), ended is not None and bool(ended[0]), False, task.last_info(0)

    def render(self) -> Array:
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer
        from mujoco import MjData

        if self._drawing is None:
            data = MjData(self._one.model)
            self._drawing = data, MujocoRenderer(self._one.model, data, width=480, height=480)
        data, renderer = self._drawing
        self._one.sims.copy_data(0, data)
        return np.asarray(renderer.render("rgb_array"))

    def close(self) -> None:
        if self._drawing is not None:
            self._drawing[1].close()  # type: ignore[no-untyped-call]
