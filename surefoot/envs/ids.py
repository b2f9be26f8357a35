"""Gymnasium's ids and wrappers, read from its files: importing it would be too slow for Tab completion."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from surefoot.envs.shipped_ids import SHIPPED

HIDDEN_ADAPTERS = "GymV"  # adapters for Gym's old API
HIDDEN = ("phys2d/", "tabular/", HIDDEN_ADAPTERS)  # Gymnasium's internal variants
ATARI = "ALE/"  # prefix of the games' ids
SEVERAL_PLAYERS = ("combat", "joust", "maze_craze", "warlords")  # multiplayer games, which are not registered


def registered_ids() -> list[str]:
    """Gymnasium's ids and ours, unsorted. Other packages register theirs only when imported."""
    found = re.findall(r"register\(\s*id=\"([^\"]+)\"", _read("gymnasium", "envs/__init__.py"))
    return [*(name for name in found if not name.startswith(HIDDEN)), *SHIPPED]


def atari_ids() -> list[str]:
    """The games of ale_py, if it is installed."""
    folder = _folder("ale_py")
    if folder is None:
        return []
    games = sorted(file.stem for file in (folder / "roms").glob("*.bin") if file.stem not in SEVERAL_PLAYERS)
    return [f"{ATARI}{game.title().replace('_', '')}-v5" for game in games]


def objects_in(source: str) -> list[str]:
    """`file.py:Name` for the classes and functions that a file defines. It is read, never executed."""
    try:
        tree = ast.parse(Path(source).expanduser().read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    defined = (node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)))
    return [f"{source}:{node.name}" for node in defined if not node.name.startswith("_")]


def wrapper_names() -> list[str]:
    """The wrappers that `--wrappers` accepts by name."""
    for node in ast.parse(_read("gymnasium", "wrappers/__init__.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            with suppress(ValueError):
                return [name for name in ast.literal_eval(node.value) if name[:1].isupper()]
    return []


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _read(package: str, path: str) -> str:
    folder = _folder(package)
    try:
        return (folder / path).read_text(encoding="utf-8") if folder is not None else ""
    except OSError:
        return ""
