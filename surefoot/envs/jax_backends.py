"""Ids of functional envs in JAX: `brax:ant`, `playground:CartpoleBalance`, and `jax:file.py:make` for your own."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

from surefoot.envs.backends import Backend
from surefoot.envs.ids import objects_in
from surefoot.errors import UsageError, did_you_mean
from surefoot.user_code import load_object

if TYPE_CHECKING:
    from types import ModuleType

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.jax_envs import Compiled, FunctionalEnv, JaxEnv, JaxEnvs

TOGETHER = "JAX steps the envs together"
BRAX_STEPS = 1000  # Brax's own default


class Functional(Backend):
    """A kind of functional envs. The state of an env is saved with the run, so that it resumes exactly."""

    no_workers = TOGETHER
    no_film = "is an env in JAX, which cannot be drawn here"
    own_time_limit = True

    @abstractmethod
    def load(self, name: str, kwargs: dict[str, object]) -> tuple[FunctionalEnv, int | None]:
        """(the env, its usual time limit) of the part of an id after the colon."""

    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> JaxEnv:
        from surefoot.envs.jax_envs import JaxEnv

        compiled, limit = _compiled(self, *self._key(config))
        return JaxEnv(compiled, config.max_episode_steps or limit)

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> JaxEnvs:
        from surefoot.envs.jax_envs import JaxEnvs, JaxVectorEnv

        if setting := config.one_by_one:
            raise UsageError(f"{setting} cannot be applied to {config.env}: {TOGETHER}; drop it")
        compiled, limit = _compiled(self, *self._key(config))
        steps = config.max_episode_steps or limit
        return JaxEnvs(JaxVectorEnv(compiled.env, num_envs, max_episode_steps=steps, first=first), seed)

    def steps_together(self, config: EnvConfig) -> tuple[bool, str]:
        return True, TOGETHER

    def _key(self, config: EnvConfig) -> tuple[str, str]:
        return config.env.removeprefix(f"{self.name}:"), json.dumps(config.env_kwargs, sort_keys=True)

    def code(self, env_id: str) -> str:
        return ""


@cache
def _compiled(backend: Functional, name: str, kwargs: str) -> tuple[Compiled, int | None]:
    """Compiling takes longer than many an evaluation, so every env of an id shares the result."""
    from surefoot.envs.jax_envs import Compiled

    env, limit = backend.load(name, json.loads(kwargs))
    return Compiled(env), limit


def _package(module: str, install: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise UsageError(f"{install.partition(' ')[0]} is not installed: pip install {install}") from None


class Brax(Functional):
    """`brax:NAME`: an env of the installed Brax; `--env-kwargs` go to `get_environment`."""

    name = "brax"

    def load(self, name: str, kwargs: dict[str, object]) -> tuple[FunctionalEnv, int | None]:
        envs = _package("brax.envs", "brax")
        try:
            return cast("FunctionalEnv", envs.get_environment(name, **kwargs)), BRAX_STEPS
        except KeyError:
            raise UsageError(f"Brax has no env {name!r}; its names are those of brax.envs.get_environment") from None


class Playground(Functional):
    """`playground:NAME`: an env of MuJoCo Playground; `--env-kwargs` override its config."""

    name = "playground"

    def load(self, name: str, kwargs: dict[str, object]) -> tuple[FunctionalEnv, int | None]:
        registry = _package("mujoco_playground", "playground").registry
        known = [str(each) for each in registry.ALL_ENVS]
        if name not in known:
            raise UsageError(f"MuJoCo Playground has no env {name!r}{did_you_mean(name, known)}")
        limit = int(registry.get_default_config(name).episode_length)
        return cast("FunctionalEnv", registry.load(name, config_overrides=kwargs or None)), limit


class OwnJax(Functional):
    """`jax:file.py:make` or `jax:module:make`: what the user's function or class makes."""

    name = "jax"

    def load(self, name: str, kwargs: dict[str, object]) -> tuple[FunctionalEnv, int | None]:
        return cast("FunctionalEnv", load_object(name, "env")(**kwargs)), None

    def code(self, env_id: str) -> str:
        return env_id.removeprefix("jax:")

    def candidates(self, typed: str) -> Iterable[str]:
        source, colon, _ = typed.removeprefix("jax:").partition(":")
        return [f"jax:{found}" for found in objects_in(source)] if colon else []
