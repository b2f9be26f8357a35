"""Builds the envs of a run: from a backend, from a factory function, or from a ready-made vector env."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import gymnasium as gym
import torch

from surefoot.engine.group import ALONE, check_equal, own_envs
from surefoot.engine.registry import steps_on_device, uses_kernels
from surefoot.envs.backends import backend_of, no_workers
from surefoot.envs.bridged_envs import bridged
from surefoot.envs.checks import blamed, reset_result, supported_spaces
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import made, make_env
from surefoot.envs.mujoco.own import many_envs
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs, holds_tensors
from surefoot.envs.vector_envs import VectorEnvs, declared_mode, vector_seed
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers.auto import choose_workers, fit_to_act
from surefoot.errors import EnvError, UsageError
from surefoot.kernels.library import variant
from surefoot.limits import most_threads
from surefoot.training.build.checks import check_rollout
from surefoot.training.config.together import check_together
from surefoot.training.config.unused import check_ready
from surefoot.types import Threaded

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.engine.group import Group
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.types import Envs, GymEnv, GymVectorEnv


def build_envs(
    config: TrainConfig,
    seed: int,
    algorithm: Algorithm,
    ready: GymVectorEnv | None,
    factory: Callable[..., GymEnv] | None,
    notice: Callable[[str], None],
    group: Group = ALONE,
) -> Envs:
    """`ready`: a ready-made vector env. `factory`: makes one env (default: the config's). `notice`: for messages.

    `group`: the processes that share the envs, each of which builds its own.
    """
    if ready is not None:
        check_equal(group, ready.num_envs)
        check_together(config, ready.num_envs * group.size)
        check_ready(config, algorithm)
        return ready_envs(ready, derive_seed(seed, "envs of", group.index) if group.index else seed)
    env, own = config.env, own_envs(group, config.algorithm.num_envs)
    num_envs = own.stop - own.start
    check_rollout(config.algorithm.rollout_length, config.algorithm.num_envs)
    if (together := _together(config, seed, factory, own, group)) is not None:
        return together
    if not env.num_workers:
        envs = GymEnvs(lambda: make_env(env, factory), num_envs, seed, own.start)
        if factory is None and uses_kernels(config.engine) and (why := backend_of(env.env).steps_together(env)[1]):
            envs.notes = (f"note: the envs are stepped one by one, which is slower: {why}",)
        return envs
    if factory is None and (why := no_workers(env.env)):
        raise UsageError(f"workers cannot step {env.env}: {why}; drop --workers")
    if env.restart_workers and algorithm.episodes_per_env is not None:
        raise UsageError(f"restart_workers cuts episodes short, but {config.algo_name} learns from whole ones; drop it")
    return WorkerEnvs(
        env,
        num_envs,
        seed,
        env.num_workers,
        timeout=env.env_timeout,
        restarts=env.restart_workers,
        factory=factory,
        notice=notice,
        first=own.start,
    )


def ready_envs(envs: GymVectorEnv, seed: int) -> Envs:
    """Wrap a ready-made vector env; its first reset shows whether it returns tensors, or other arrays on a device."""
    declared_mode(envs)
    supported_spaces(envs, "single_")
    with blamed("reset", envs):
        obs, info = reset_result(envs.reset(seed=vector_seed(seed)), envs)
    envs, obs, info = bridged(envs, obs, info)
    return TensorEnvs(envs, (obs, info)) if holds_tensors(obs) else VectorEnvs(envs, seed, (obs, info))


def _together(
    config: TrainConfig, seed: int, factory: Callable[..., GymEnv] | None, own: slice, group: Group
) -> Envs | None:
    """Envs that their backend makes all at once; None if they are made one by one."""
    native, num_envs = uses_kernels(config.engine), own.stop - own.start
    envs: Envs | None
    if factory is not None:
        with made(config.env):
            envs = many_envs(config.env, factory, num_envs, seed, own.start) if native else None
    else:
        envs = _from_backend(config, seed, own, group, native=native)
    if isinstance(envs, Threaded):
        threads = config.run.threads
        most = (1 if group.size > 1 else most_threads()) if threads == "auto" else threads
        envs.use_threads(most, measure=threads == "auto" and group.size == 1)
    return envs


def _from_backend(config: TrainConfig, seed: int, own: slice, group: Group, *, native: bool) -> Envs | None:
    backend, first = backend_of(config.env.env), {"first": own.start} if group.size > 1 else {}
    with made(config.env):
        device = gpu_for_envs(config) if group.size == 1 else None
        if device is not None and (beside := backend.make_on_device(config.env, own.stop, seed, device)) is not None:
            return beside
        envs = backend.make_many(config.env, own.stop - own.start, seed, native=native, **first)
    if envs is not None and backend.one_row_each and envs.num_envs != own.stop - own.start:
        found, wanted = envs.num_envs, own.stop - own.start
        envs.close()
        raise EnvError(f"make_many of the backend {backend.name!r} made {found} envs; {wanted} were asked for")
    if envs is not None and not backend.one_row_each:  # the number of rows is known only now
        try:
            check_equal(group, envs.num_envs)
            check_together(config, envs.num_envs * group.size)
        except BaseException:
            envs.close()
            raise
    return envs


def close_envs(envs: Envs, warn: Callable[[str], None]) -> None:
    """A simulator that fails while it is closed takes nothing back of what was trained."""
    try:
        envs.close()
    except EnvError as error:
        warn(str(error))


def gpu_for_envs(config: TrainConfig) -> torch.device | None:
    """Where envs may be stepped beside the policy."""
    if config.run.device != "cuda" or not torch.cuda.is_available():
        return None
    return torch.device("cuda") if steps_on_device(config.engine, config.engines_before) else None


def settle_workers(config: TrainConfig, env: object = None, group: Group = ALONE) -> tuple[TrainConfig, list[str]]:
    """Replace `workers=auto` by a measured number; also returns messages about it. `env`: an env passed in Python."""
    wanted, vector = config.env.workers, isinstance(env, gym.vector.VectorEnv)
    if vector and wanted not in (0, "auto"):
        raise UsageError("workers cannot step a ready-made vector env, which steps itself; drop workers")
    if wanted != "auto":
        return config, []
    num_envs = config.algorithm.num_envs
    check_rollout(config.algorithm.rollout_length, num_envs)
    if env is not None:
        number, why = 0, "a vector env steps itself" if vector else "another process cannot be given a function"
        timed = config.env.env_timeout != type(config.env).env_timeout
        for name, asked in (("restart_workers", config.env.restart_workers), ("env_timeout", timed)):
            if asked:
                raise UsageError(f"{name} needs workers, but {why}; drop it")
    else:
        alone = replace(config.env, workers=0, restart_workers=0)
        together, why = backend_of(alone.env).steps_together(alone) if uses_kernels(config.engine) else (False, "")
        needed = config.env.restart_workers or config.env.env_timeout != type(config.env).env_timeout
        best = (0, why)
        if needed or not together:
            best = choose_workers(config.env, num_envs // group.size, partial(_workers_act, config))
        number, why = group.agree(best)
    return replace(config, env=replace(config.env, workers=number)), [f"workers {number} ({why})"]


def _workers_act(config: TrainConfig, envs: Envs) -> bool:
    """Whether workers will act on their own (`WorkerStepping`), as far as can be told before the policy exists."""
    policy = config.policy
    if config.run.device == "cuda" or not uses_kernels(config.engine) or variant() is None:
        return False
    if policy.own_encoder or policy.critic_obs or policy.std == "gsde":
        return False
    whole = config.new_algorithm().episodes_per_env is not None
    normalized = policy.normalize_observations and not envs.layout.plain
    return fit_to_act(envs) and not whole and not normalized
