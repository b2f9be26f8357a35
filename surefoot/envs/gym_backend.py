"""Gymnasium's envs: registered ids, `module:Id`, and `file.py:Factory` for the user's own envs. No heavy import."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from surefoot.envs.backends import Backend
from surefoot.envs.ids import ATARI, HIDDEN_ADAPTERS, atari_ids, objects_in, registered_ids
from surefoot.user_code import load_object

if TYPE_CHECKING:
    import torch

    from surefoot.envs.config import EnvConfig
    from surefoot.types import Envs, GymEnv

FILE = re.compile(r"\.py:")  # in an id
TOGETHER, COMPILED = "MuJoCo steps the envs together", "compiled code steps the envs"


class Gymnasium(Backend):
    """Ids without a prefix."""

    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> GymEnv:
        from surefoot.envs.make import from_factory, registered_env

        if FILE.search(config.env):
            return from_factory(config, load_object(config.env, "env"), render_mode)
        return registered_env(config, render_mode)

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> Envs | None:
        """Classic control in C++ and MuJoCo in batches, if they equal Gymnasium's to the last bit; users' tasks."""
        from surefoot.envs.mujoco.own import many_envs
        from surefoot.envs.mujoco.serving import make_v5, serves
        from surefoot.envs.native_envs import NativeEnvs, serves_natively
        from surefoot.kernels.classic import classic_library

        if not native:
            return None
        if FILE.search(config.env):
            return many_envs(config, load_object(config.env, "env"), num_envs, seed, first)
        if serves_natively(config):
            return NativeEnvs(config, num_envs, seed, classic_library(), first)
        return make_v5(config, num_envs, seed, first) if serves(config)[0] else None

    def steps_together(self, config: EnvConfig) -> tuple[bool, str]:
        from surefoot.envs.mujoco.own import is_task
        from surefoot.envs.mujoco.serving import serves
        from surefoot.envs.native_envs import serves_natively

        if serves_natively(config):
            return True, COMPILED
        if FILE.search(config.env) and is_task(load_object(config.env, "env")):
            together, why = not config.one_by_one, f"{config.one_by_one} cannot be combined with the batch"
        else:
            together, why = serves(config)
        return together, TOGETHER if together else why

    def make_on_device(self, config: EnvConfig, num_envs: int, seed: int, device: torch.device) -> Envs | None:
        """Classic control in PyTorch: the same equations, but other random numbers."""
        from surefoot.envs.device_envs import DeviceEnvs
        from surefoot.envs.native_envs import native_kind

        return None if native_kind(config)[0] is None else DeviceEnvs(config, num_envs, seed, device)

    def code(self, env_id: str) -> str:
        # The adapters for Gym's old API can make any env that their env_kwargs name.
        return env_id if ":" in env_id or env_id.startswith(HIDDEN_ADAPTERS) else ""

    def takes_render_mode(self, env_id: str) -> bool:
        from surefoot.envs.make import creator_of
        from surefoot.envs.mujoco.own import is_task

        creator = load_object(env_id, "env") if FILE.search(env_id) else creator_of(env_id)
        if is_task(creator):
            return True
        if creator is None:
            return False
        try:
            parameters = inspect.signature(creator).parameters.values()
        except (TypeError, ValueError):  # for example, of C code
            return True
        return any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD for one in parameters)

    def ids(self) -> Iterable[str]:
        from surefoot.envs.make import known_envs

        return known_envs()

    def candidates(self, typed: str) -> Iterable[str]:
        """Reads names from Gymnasium's files, and objects from the user's file without executing it."""
        source, colon, _ = typed.partition(":")
        if colon:
            return objects_in(source)
        games = atari_ids()
        return [*registered_ids(), *(games if typed.startswith(ATARI) else [ATARI] if games else [])]
