"""Env backends: what an id means, how its envs are made, and what can be done with them.

A backend is one class in one file. `toy:Walk` belongs to the backend named `toy`, and an id without a prefix to
Gymnasium's. Everything that depends on the kind of env asks `backend_of`; no other file inspects id prefixes.
An installed package adds a backend through the entry point `surefoot.backends`, a script through `register`. No heavy
import: the command line reads this file, and a backend is imported when it is first needed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from surefoot.errors import SurefootError, UsageError, user_errors
from surefoot.user_code import installed, load_entry

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import torch

    from surefoot.envs.config import EnvConfig
    from surefoot.envs.pettingzoo_copy import ParallelMaker
    from surefoot.types import Envs, GymEnv, GymSpace

GROUP = "surefoot.backends"
NAME = re.compile(r"[A-Za-z][\w-]*")


class Backend(ABC):
    """A kind of env. Only `name` and `make_one` are required; override the rest where it differs from Gymnasium's envs.

    Reasons are phrases for messages; an empty one means that there is none.
    """

    name: str = ""  # its ids are `name:…`
    no_workers: str = ""  # why worker processes cannot step its envs
    no_film: str = ""  # why its envs cannot be drawn; follows the id in a sentence
    fresh_episodes: str = ""  # why a resumed run begins fresh episodes instead of replaying the open ones
    own_time_limit: bool = False  # `make_one` applies max_episode_steps itself
    one_row_each: bool = True  # the policy sees one row per env; otherwise the number is known once they are made

    @abstractmethod
    def make_one(self, config: EnvConfig, render_mode: str | None = None) -> GymEnv:
        """One env; `config.env` is the whole id. Wrappers, frame_stack and the time limit are put around it."""

    def make_many(self, config: EnvConfig, num_envs: int, seed: int, *, native: bool, first: int = 0) -> Envs | None:
        """All envs of a run, stepped together. None: they are made one by one, and stepped in turn or by workers.

        `native`: compiled versions, which give the same bits, may be used instead. `first`: the index of the first env
        in the whole run, for its seeds; 0 unless several processes share the run. Settings that cannot be applied are
        refused here.
        """
        return None

    def steps_together(self, config: EnvConfig) -> tuple[bool, str]:
        """(whether `make_many` replaces workers for this config, why). If not, the reason is shown before a run."""
        return False, ""

    def make_on_device(self, config: EnvConfig, num_envs: int, seed: int, device: torch.device) -> Envs | None:
        """All envs of a run, stepped on a GPU beside the policy; None if there are none of this kind."""
        return None

    def spaces(self, config: EnvConfig) -> tuple[GymSpace, GymSpace]:
        """(observation, action) space of one row."""
        from surefoot.envs.make import spaces_of

        return spaces_of(config)

    def copy_maker(self, config: EnvConfig) -> ParallelMaker | None:
        """A factory of multi-agent envs to evaluate in; None: envs have one agent, and `make_one` makes them."""
        return None

    def code(self, env_id: str) -> str:
        """The code that this id imports or executes: `file.py:Name`, `module:Name` or a module. Someone else's run that
        names it needs `--trust`. Empty if the id only selects among envs that the user has installed."""
        return env_id

    def takes_render_mode(self, env_id: str) -> bool:
        """Whether this env can be rendered."""
        return not self.no_film

    def preset_ids(self, env_id: str) -> tuple[str, ...]:
        """The ids whose presets suit this env."""
        return (env_id,)

    def ids(self) -> Iterable[str]:
        """What `surefoot list envs` shows; empty if there is no such list."""
        return ()

    def candidates(self, typed: str) -> Iterable[str]:
        """Ids that `typed` may become in the shell. It must be quick."""
        return self.ids()


class BuiltIn(NamedTuple):
    """Where to import a built-in backend from, and the form of its ids."""

    path: str
    form: str = ""


GYMNASIUM = BuiltIn("surefoot.envs.gym_backend:Gymnasium")
BUILT_IN = {
    "atari": BuiltIn("surefoot.envs.atari_envs:Atari", "ID"),
    "brax": BuiltIn("surefoot.envs.jax_backends:Brax", "NAME"),
    "envpool": BuiltIn("surefoot.envs.envpool_envs:EnvPool", "ID"),
    "jax": BuiltIn("surefoot.envs.jax_backends:OwnJax", "FILE.py:FACTORY"),
    "pettingzoo": BuiltIn("surefoot.envs.pettingzoo_envs:PettingZoo", "MODULE"),
    "playground": BuiltIn("surefoot.envs.jax_backends:Playground", "NAME"),
}
SEVERAL_AGENTS = "pettingzoo:file.py:factory"  # how to name a multi-agent env
FORMS = tuple(f"{name}:{found.form}" for name, found in BUILT_IN.items())  # for help texts
_registered: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Add a backend in this process. A name that is taken by ours is refused; one registered before is replaced."""
    if not NAME.fullmatch(backend.name):
        raise UsageError(f"{backend.name!r} cannot name an env backend; use letters, digits, - and _")
    if backend.name in BUILT_IN:
        raise UsageError(f"there is an env backend {backend.name!r} already; choose another name")
    _registered[backend.name] = backend


def unregister(name: str) -> None:
    """Remove a backend that `register` added."""
    _registered.pop(name, None)


def backend_of(env_id: str) -> Backend:
    """The backend that an id belongs to."""
    name, colon, _ = env_id.partition(":")
    found = _named(name) if colon and NAME.fullmatch(name) else None
    return found or _ours(GYMNASIUM.path)


def no_workers(env_id: str) -> str:
    """Why worker processes cannot step envs of this id; empty if they can."""
    backend = backend_of(env_id)
    if not backend.no_workers and backend in _registered.values():
        return f"the backend {backend.name} was registered in this process only; install it as a package"
    return backend.no_workers


def known_names() -> list[str]:
    """All prefixes of ids: the built-in ones, those registered here and those of installed packages."""
    return list(dict.fromkeys([*BUILT_IN, *_registered, *installed(GROUP)]))


def _named(name: str) -> Backend | None:
    if name in BUILT_IN:
        return _ours(BUILT_IN[name].path)
    if name in _registered:
        return _registered[name]
    entry = installed(GROUP).get(name)
    return None if entry is None else _installed(entry)


@cache
def _ours(path: str) -> Backend:
    module, _, name = path.partition(":")
    found: Backend = getattr(import_module(module), name)()
    return found


@cache
def _installed(entry: EntryPoint) -> Backend:
    """An instance of the class that a package offers."""
    made = load_entry(entry, "env backend")
    try:
        backend = made() if isinstance(made, type) else made
    except SurefootError:
        raise
    except user_errors() as error:
        raise UsageError(f"the env backend {entry.name} ({entry.value}) could not be loaded: {error!r}") from error
    if not isinstance(backend, Backend) or backend.name != entry.name:
        raise UsageError(
            f"the entry point {entry.name} = {entry.value} is not a surefoot.envs.backends.Backend of that name"
        )
    return backend
