"""Settings that are known to work, as TOML files in this folder: `<env>/<algo>`, `homework/…`, `lecture/…`.

For an env without its own preset, `family/…` has sound defaults for its kind.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable

from surefoot.envs.backends import backend_of
from surefoot.errors import UsageError, did_you_mean

MUJOCO = "Ant|HalfCheetah|Hopper|Humanoid(Standup)?|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer|Walker2d"
FAMILIES = {"mujoco": re.compile(rf"({MUJOCO})-v\d+"), "atari": re.compile(r"ALE/.+")}


def list_presets() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.toml')}"
        for folder in files(__name__).iterdir()
        if folder.is_dir() and not folder.name.startswith("_")
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    )


def load_preset(name: str) -> dict[str, object]:
    file = _file(name)
    if file is None:
        known = list_presets()
        raise UsageError(f"unknown preset '{name}'{did_you_mean(name, known)} (`surefoot list presets` shows all)")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def automatic_preset(env: str, algo: str) -> str | None:
    """The tuned preset for this env and algorithm, or else the defaults of its family, if any."""
    ids = backend_of(env).preset_ids(env)
    family = next((kind for kind, pattern in FAMILIES.items() if any(map(pattern.fullmatch, ids))), None)
    names = [*(f"{one}/{algo}" for one in ids), *([f"family/{family}-{algo}"] if family else [])]
    return next((name for name in names if _file(name) is not None), None)


def tuned_algorithms(env: str) -> list[str]:
    """The algorithms that have a preset of their own for this env, sorted."""
    ids = backend_of(env).preset_ids(env)
    return [algo for folder, _, algo in (name.partition("/") for name in list_presets()) if folder in ids]


def _file(name: str) -> Traversable | None:
    folder, _, stem = name.partition("/")
    if not folder or not stem or "/" in stem or folder.startswith(".") or stem.startswith("."):
        return None
    file = files(__name__) / folder / f"{stem}.toml"
    return file if file.is_file() else None
