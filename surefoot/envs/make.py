"""Makes one Gymnasium environment from its name, with errors that say what to do."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled, NameNotFound, NamespaceNotFound, VersionNotFound

from surefoot.envs.atari import is_atari, make_kwargs, preprocess
from surefoot.envs.backends import SEVERAL_AGENTS, backend_of
from surefoot.envs.checks import blamed
from surefoot.envs.forks import Original
from surefoot.envs.ids import HIDDEN
from surefoot.envs.mujoco.own import is_task, own_env
from surefoot.envs.quiet_models import quiet_models
from surefoot.envs.shipped_ids import register_shipped
from surefoot.errors import CodeError, EnvError, SurefootError, UsageError, did_you_mean, user_errors
from surefoot.user_code import load_object

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.types import GymEnv, GymSpace

Factory = Callable[..., "GymEnv"]

# Where an env comes from -> the extra that installs it.
OURS = {  # arguments of gymnasium.make that are no settings of the env
    "id": "name the env before the flags",
    "max_episode_steps": "use --max-episode-steps",
    "disable_env_checker": "drop it; `surefoot doctor` checks envs",
}
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale_py": "atari"}

register_shipped()


def make_env(config: EnvConfig, factory: Factory | None = None, render_mode: str | None = None) -> GymEnv:
    """The environment of a config (or of `factory`, which Python callers may pass), with its wrappers."""
    with Original():
        if factory is not None:
            return _wrapped(from_factory(config, factory, render_mode), config)
        backend = backend_of(config.env)
        if render_mode is not None and backend.no_film:
            raise UsageError(f"{config.env} {backend.no_film}")
        with made(config):
            env = backend.make_one(config, render_mode)
        if not isinstance(env, gym.Env):
            raise UsageError(f"the backend of {config.env} made a {type(env).__name__}; it must make a gymnasium.Env")
        return _wrapped(env, config, limited=backend.own_time_limit)


def spaces_of(config: EnvConfig) -> tuple[GymSpace, GymSpace]:
    """(observation, action) space of the env of a config."""
    probe = make_env(config)
    with blamed("close", probe):
        probe.close()
    return probe.observation_space, probe.action_space


@contextmanager
def made(config: EnvConfig) -> Iterator[None]:
    """Turn what making an env raises into an error that says whether the settings or the env are wrong."""
    try:
        yield
    except CodeError as error:
        raise error if isinstance(error, EnvError) else EnvError(str(error)) from error.__cause__
    except (SurefootError, MemoryError):  # the command line has its own advice for MemoryError
        raise
    except ImportError as error:
        raise UsageError(f"{config.env} could not be made: {error}") from None
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise UsageError(f"env_kwargs={config.env_kwargs} do not fit {config.env}: {error}") from None
        raise EnvError(f"{config.env} raised while it was made: {error}") from error
    except user_errors() as error:
        raise EnvError(f"{config.env} raised {type(error).__name__} while it was made: {error}") from error


def _wrapped(env: GymEnv, config: EnvConfig, *, limited: bool = False) -> GymEnv:
    """Apply the wrappers from the settings. `limited`: max_episode_steps is already applied."""
    if config.frame_stack > 1:
        env = gym.wrappers.FrameStackObservation(env, config.frame_stack)
    for wrapper in config.wrappers:
        env = _wrap(env, wrapper)
    if config.max_episode_steps is not None and not limited and not _has_limit(env, config.max_episode_steps):
        env = gym.wrappers.TimeLimit(env, config.max_episode_steps)
    return env


def _has_limit(env: GymEnv, steps: int) -> bool:
    """Whether `gym.make` has already applied this very limit."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit) and env._max_episode_steps == steps:
            return True
        env = env.env
    return False


def creator_of(env_id: str) -> Callable[..., object] | None:
    """The factory of a registered id; None if there is no such id."""
    spec = gym.envs.registration.registry.get(env_id.split(":")[-1])
    creator = None if spec is None else spec.entry_point
    return gym.envs.registration.load_env_creator(creator) if isinstance(creator, str) else creator


def from_factory(config: EnvConfig, factory: Factory, render_mode: str | None) -> GymEnv:
    """The env that the user's function makes, or an env of the user's MujocoTask."""
    kwargs = _kwargs(config, render_mode)
    try:
        env = own_env(config, factory, render_mode) if is_task(factory) else factory(**kwargs)
    except user_errors() as error:
        if isinstance(error, TypeError) and ("render_mode" in str(error) or _cannot_draw(factory, kwargs)):
            raise UsageError(
                "to be filmed, the environment's factory must take render_mode and hand it on to the env"
            ) from None
        name = f" {config.env}" if config.env else ""
        raise EnvError(f"the environment's factory{name} raised {type(error).__name__}: {error}") from error
    if hasattr(env, "possible_agents"):
        raise UsageError(
            f"the environment's factory returned {type(env).__name__}, an env of several agents; "
            f"write it into a file and name it as {SEVERAL_AGENTS}"
        )
    if isinstance(env, gym.vector.VectorEnv):
        raise UsageError(
            f"the environment's factory returned {type(env).__name__}, a vector env; in Python, pass it itself to "
            "surefoot.train. For the command line, write a backend (docs/backends.md)"
        )
    if not isinstance(env, gym.Env):
        raise UsageError(f"the environment's factory returned {type(env).__name__}; it must return a gymnasium.Env")
    return env


def _cannot_draw(factory: Factory, kwargs: dict[str, object]) -> bool:
    """Whether render_mode is the one argument too many. A class without `__init__` does not name it in its error."""
    if "render_mode" not in kwargs:
        return False
    try:
        signature = inspect.signature(factory)
        signature.bind(**{name: value for name, value in kwargs.items() if name != "render_mode"})
    except (TypeError, ValueError):
        return False
    return "render_mode" not in signature.parameters and not any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
    )


def registered_env(config: EnvConfig, render_mode: str | None) -> GymEnv:
    """The env of an id that Gymnasium knows, or will know after importing the module before the colon."""
    if config.env.count(":") > 1:
        raise UsageError(f"'{config.env}' is not an environment; write an id, module:Id or file.py:Factory")
    if not config.env:
        raise UsageError("no environment given; name one, before the flags: surefoot train CartPole-v1 --seed 0")
    import_plugins(config.env)
    if _versions(config.env):  # Gymnasium would silently take the newest version, which changes over time
        raise UsageError(_unknown_env(config.env))
    for name, instead in OURS.items():
        if name in config.env_kwargs:
            raise UsageError(f"env_kwargs are for the env, and {name} is an argument of gymnasium.make: {instead}")
    kwargs = make_kwargs(config.env, _kwargs(config, render_mode))
    try:
        # The checker wrapper costs more than a CartPole step; we do its checks once, at the first reset.
        with quiet_models(config.env, kwargs):
            env = gym.make(config.env, max_episode_steps=config.max_episode_steps, disable_env_checker=True, **kwargs)
    except (NameNotFound, NamespaceNotFound, VersionNotFound, gym.error.DeprecatedEnv):
        raise UsageError(_unknown_env(config.env)) from None
    except DependencyNotInstalled as error:
        raise UsageError(
            f"{config.env} needs a package that is not installed: {_install_hint(config.env, error)}"
        ) from None
    except gym.error.Error as error:
        raise UsageError(f"{config.env!r} is not a valid environment id: {error}") from None
    return preprocess(env, config.env_kwargs) if is_atari(config.env) else env


def _kwargs(config: EnvConfig, render_mode: str | None) -> dict[str, object]:
    return dict(config.env_kwargs) | ({"render_mode": render_mode} if render_mode else {})


def import_plugins(env_id: str) -> None:
    """Atari ids exist only after their package is imported."""
    if is_atari(env_id):
        if importlib.util.find_spec("ale_py") is None:
            raise UsageError(f'{env_id} needs a package that is not installed: pip install "surefoot[atari]"')
        gym.register_envs(importlib.import_module("ale_py"))


def _install_hint(env_id: str, error: Exception) -> str:
    spec = gym.envs.registration.registry.get(env_id.split(":")[-1])
    entry = str(spec.entry_point) if spec else ""
    extra = next((extra for part, extra in EXTRAS.items() if part in entry), None)
    return f'pip install "surefoot[{extra}]"' if extra else str(error)


def _versions(env_id: str) -> list[str]:
    """For an unregistered id: the registered versions of the same name, newest last."""
    if ":" in env_id or env_id in gym.envs.registration.registry:
        return []
    name = env_id.rsplit("-v", 1)[0].lower()
    return [known for known in known_envs() if known.rsplit("-v", 1)[0].lower() == name]


def _unknown_env(env_id: str) -> str:
    """Suggests the newest version of the same name, else the nearest name, else where to look."""
    versions = _versions(env_id)
    hint = f"; did you mean '{versions[-1]}'?" if versions else did_you_mean(env_id, known_envs())
    where = (
        "" if hint else " (`surefoot list envs` shows the registered ones; yours may need module:Id or file.py:Factory)"
    )
    return f"unknown environment '{env_id}'{hint}{where}"


def known_envs() -> list[str]:
    """Registered ids, sorted by name and version, without Gymnasium's internal variants."""
    registry = gym.envs.registration.registry

    def order(env_id: str) -> tuple[str, int]:
        name, _, version = env_id.rpartition("-v")
        return (name, int(version)) if version.isdigit() else (env_id, 0)

    return sorted((i for i in registry if not i.startswith(HIDDEN)), key=order)


def _wrap(env: GymEnv, text: str) -> GymEnv:
    """Apply one wrapper written as `Name`, `module:Name` or `file.py:Name`, with optional JSON arguments."""
    name, brace, arguments = text.partition("{")
    try:
        kwargs = json.loads(brace + arguments) if brace else {}
    except json.JSONDecodeError as error:
        raise UsageError(f"wrappers: the arguments in {text!r} are not JSON: {error}") from None
    name = name.strip()
    if ":" in name:
        wrapper = load_object(name, "wrappers")
    else:
        try:
            wrapper = getattr(gym.wrappers, name, None)
        except ImportError as error:
            raise UsageError(f"wrappers: {name} needs a package that is not installed: {error}") from None
        if not isinstance(wrapper, type):
            raise UsageError(f"wrappers: gymnasium.wrappers has no {name!r}{did_you_mean(name, gym.wrappers.__all__)}")
    try:
        wrapped: GymEnv = wrapper(env, **kwargs)
    except user_errors() as error:
        raise UsageError(f"wrappers: {name}({kwargs}) failed: {type(error).__name__}: {error}") from error
    return wrapped
