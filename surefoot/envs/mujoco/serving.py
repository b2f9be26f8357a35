"""Whether Gymnasium's MuJoCo-v5 envs can be stepped in a batch here, to the same bits."""

from __future__ import annotations

import inspect
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from surefoot.envs.gym_envs import render_modes, time_limit
from surefoot.envs.make import creator_of, make_env
from surefoot.envs.mujoco.arms import InvertedDoublePendulum, InvertedPendulum, Pusher, Reacher
from surefoot.envs.mujoco.batch import NoBatch, batch_library, check_callbacks
from surefoot.envs.mujoco.envs import Facts, MujocoEnvs
from surefoot.envs.mujoco.runners import Ant, HalfCheetah, Hopper, Humanoid, HumanoidStandup, Swimmer, Walker2d
from surefoot.envs.mujoco.v5 import Arguments, V5Task, norms, sum_of_squares
from surefoot.envs.side_by_side import compared_once, plays_differ, same_bits
from surefoot.errors import user_errors

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.gym_envs import GymEnvs
    from surefoot.types import Array

PACKAGE = "gymnasium.envs.mujoco."
TASKS: dict[str, type[V5Task]] = {  # by Gymnasium's class
    "ant_v5:AntEnv": Ant,
    "half_cheetah_v5:HalfCheetahEnv": HalfCheetah,
    "hopper_v5:HopperEnv": Hopper,
    "humanoid_v5:HumanoidEnv": Humanoid,
    "humanoidstandup_v5:HumanoidStandupEnv": HumanoidStandup,
    "inverted_double_pendulum_v5:InvertedDoublePendulumEnv": InvertedDoublePendulum,
    "inverted_pendulum_v5:InvertedPendulumEnv": InvertedPendulum,
    "pusher_v5:PusherEnv": Pusher,
    "reacher_v5:ReacherEnv": Reacher,
    "swimmer_v5:SwimmerEnv": Swimmer,
    "walker2d_v5:Walker2dEnv": Walker2d,
}
# Arguments that change only pictures.
DRAWING = {"default_camera_config", "width", "height", "camera_id", "camera_name", "max_geom", "visual_options"}


def v5_task(env_id: str) -> type[V5Task] | None:
    """The task of a MuJoCo-v5 env; None for other envs."""
    spec = gym.registry.get(env_id)
    return None if spec is None else TASKS.get(str(spec.entry_point).removeprefix(PACKAGE))


def why_not(config: EnvConfig) -> str:
    """Why the batch cannot step this MuJoCo-v5 env with these settings; empty if it can."""
    spec = gym.registry[config.env]
    if spec.kwargs or spec.additional_wrappers:
        return f"{config.env} is registered with arguments or wrappers of its own"
    if config.one_by_one:
        return f"Gymnasium's {config.env} is needed for {config.one_by_one}"
    try:
        batch_library()
        check_callbacks()
    except NoBatch as reason:
        return str(reason)
    known = _defaults(config.env)
    for name, value in config.env_kwargs.items():
        if name not in known and name not in DRAWING:
            return f"env_kwargs has {name!r}, which only Gymnasium's {config.env} may know"
        if name in known and not _fits(name, value, known[name]):
            return f"env_kwargs has {name}={value!r}, which only Gymnasium's {config.env} may know"
    return ""


def _defaults(env_id: str) -> dict[str, object]:
    """The arguments of an env's constructor and their defaults."""
    creator = creator_of(env_id)
    assert creator is not None
    found = inspect.signature(creator).parameters.values()
    return {one.name: one.default for one in found if one.default is not one.empty and one.name not in DRAWING}


def _fits(name: str, value: object, default: object) -> bool:
    """Whether a value is of the kind that our tasks compute with. (A NumPy scalar would change the types of sums.)"""
    if name == "main_body":
        return type(value) in (int, str)
    if name == "frame_skip":  # MuJoCo ends the process if it is 0
        return type(value) is int and value >= 1
    if isinstance(default, bool | str):
        return type(value) is type(default)
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    return _is_number(value)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and value == value


def make_v5(config: EnvConfig, num_envs: int, run_seed: int, first: int = 0) -> MujocoEnvs:
    """The envs of a config for which `why_not` has no reason."""
    task = v5_task(config.env)
    assert task is not None
    with closing(make_env(config)) as one:  # Gymnasium compiles the model
        model, frame_skip = one.unwrapped.model, one.unwrapped.frame_skip  # type: ignore[attr-defined]
        assert isinstance(one.action_space, spaces.Box)
        facts = Facts(
            name=one.spec.id if one.spec else config.env,
            model=model,
            observation_space=one.observation_space,
            action_space=one.action_space,
            time_limit=time_limit(one),
            render_modes=render_modes(one),
        )
    arguments = Arguments(_defaults(config.env) | config.env_kwargs)
    return MujocoEnvs(task(model, frame_skip, arguments), facts, num_envs, run_seed, first)


def serves(config: EnvConfig) -> tuple[bool, str]:
    """(whether the batch may step these envs, why not). Not a MuJoCo-v5 env: no reason."""
    if v5_task(config.env) is None:
        return False, ""
    if reason := why_not(config):
        return False, reason
    different = compared_once(config, lambda: disagreement(config))
    return not different, different


def disagreement(config: EnvConfig, *, num_envs: int = 2, steps: int = 40, limit: int = 15) -> str | None:
    """How Gymnasium's envs and ours differ on this machine; None if no difference was found.

    Compares first the functions that could be computed differently for many rows than for one, then whole steps of
    both, in episodes of at most `limit` steps.
    """
    config = replace(config, max_episode_steps=limit)
    rng = np.random.default_rng(0)
    try:
        if different := functions_differ(rng):
            return f"NumPy's {different} of many rows is not that of one"
        with closing(make_v5(config, num_envs, 0)) as ours:
            low, high = ours.facts.action_space.low, ours.facts.action_space.high

            def actions(_: Array) -> Array:
                return rng.uniform(low, high, (num_envs, *low.shape)).astype(np.float32)

            return plays_differ(config, ours, actions, states_differ, steps)
    except NoBatch as error:
        return str(error)
    except user_errors() as error:  # a model of the user's that our task does not fit, for example
        return f"the comparison with Gymnasium's failed: {error}"


def functions_differ(rng: np.random.Generator) -> str | None:
    """The first function whose results for many rows differ from those for each row."""
    angles, vectors = rng.uniform(-40.0, 40.0, (500, 2)), rng.standard_normal((500, 3))
    for size in (2, 6, 17, 84):
        rows = rng.standard_normal((16, size)).astype(np.float32)
        for kind in (np.float32, np.float64):
            own = rows.astype(kind)
            if not same_bits(sum_of_squares(own), np.array([np.sum(np.square(row)) for row in own])):
                return "sum"
    if not same_bits(norms(vectors), np.array([np.linalg.norm(row) for row in vectors])):
        return "norm"
    for function in (np.sin, np.cos):
        if not same_bits(function(angles), np.array([function(row.copy()) for row in angles])):
            return function.__name__
    return None


def states_differ(theirs: GymEnvs, ours: MujocoEnvs) -> str | None:
    """ "state" if positions or velocities of an env differ in any bit."""
    for index, env in enumerate(theirs.envs):
        data = env.unwrapped.data  # type: ignore[attr-defined]
        for name in ("qpos", "qvel", "qacc_warmstart"):
            if not same_bits(getattr(data, name), ours.sims.field(name)[index]):
                return "state"
    return None
