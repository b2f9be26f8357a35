"""The flags of a user's own algorithm for shell completion. Its file is read, not executed."""

from __future__ import annotations

import ast
from pathlib import Path

from surefoot.algorithms import ALGORITHMS
from surefoot.cli.flags import Parser
from surefoot.settings import Option
from surefoot.training.config.resolve import all_options
from surefoot.training.config.run_config import DEFAULT_ALGO
from surefoot.user_code import names_code


class OwnSettings:
    """Settings of your own."""


def flags_of(algo: str) -> dict[str, Option]:
    """Every setting of a run of this algorithm. For shell completion, no code is executed."""
    return _read(algo) if Parser.describing and names_code(algo) else all_options(algo)


def _read(algo: str) -> dict[str, Option]:
    """The settings of the algorithm whose presets it uses (or of the default one), and those that its file declares."""
    source, _, name = algo.rpartition(":")
    try:
        tree = ast.parse(Path(source).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return all_options(DEFAULT_ALGO)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [
        field.target.id
        for cls in classes
        for field in cls.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None
    ]
    values = [
        value.value.value
        for cls in classes
        for value in cls.body
        if cls.name == name and isinstance(value, ast.Assign) and isinstance(value.value, ast.Constant)
        if ast.unparse(value.targets[0]) == "preset_of"
    ]
    like = next((value for value in values if value in ALGORITHMS), DEFAULT_ALGO)
    found = all_options(str(like))
    return {field: Option(field, str, None, "", OwnSettings) for field in fields if field not in found} | found
