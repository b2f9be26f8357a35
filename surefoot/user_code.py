"""Users' own code: objects named as `file.py:Name` or `module:Name`, and classes from installed packages.

Nothing heavy is imported here: the command line needs it before its flags are known.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from surefoot.errors import CodeError, SurefootError, UsageError, did_you_mean, user_errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOADED = "surefoot_user_"  # prefix of the modules made from files


def names_code(name: str) -> bool:
    """Whether it is `file.py:Name` or `module:Name`, whose use executes code."""
    return ":" in name


def is_from_python(name: str) -> bool:
    """`<Name>`: a class passed in Python, of which only the name is recorded."""
    return name.startswith("<") and name.endswith(">")


def short_name(name: str) -> str:
    """`path/to/file.py:Class` and `<Class>` → `Class`; other names are short already."""
    return name.rpartition(":")[2].strip("<>")


def name_of(cls: type) -> str:
    """The name by which a class can be found again: `file.py:Name`, `module:Name`, or `<Name>` if there is none.

    A class in the script being run has none, because importing the script would repeat all of its work.
    """
    module, name = sys.modules.get(cls.__module__), cls.__qualname__
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not cls:
        return f"<{cls.__name__}>"
    file = getattr(module, "__file__", None)
    if file is None or not os.path.isfile(file):
        return f"<{cls.__name__}>"
    # `surefoot resume` does not have the folder of the user's script on its path; a single file does not need it.
    alone = "." not in module.__name__ and not hasattr(module, "__path__")
    if alone and file.endswith(".py") and not {"site-packages", "dist-packages"} & set(Path(file).parts):
        near = os.path.relpath(file)
        return f"{file if near.startswith(os.pardir) else near}:{name}"
    return f"{module.__name__}:{name}"


def refuse_from_python(name: str, what: str) -> None:
    """Raise an error for `<Name>`, which is usable only in the process that was given the class."""
    if is_from_python(name):
        raise UsageError(
            f"the {what} {name} was passed in Python and is not recorded. The policy can be loaded: "
            f"surefoot.load(run). To be resumed or repeated, a run needs its {what} by name: write the class into a "
            "file of its own and use file.py:Class or module:Class"
        )


def load_object(path: str, what: str) -> Any:
    """The object named by `path/to/file.py:Name` or `module:Name`. `what`: the setting that names it."""
    source, _, name = path.rpartition(":")
    if not source or not name:
        raise UsageError(f"{what}={path!r} is not of the form file.py:Name or module:Name")
    if source.endswith(".py"):
        module = _load_file(Path(source), what)
    else:
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise UsageError(f"{what}={path!r}: {error}") from None
        except user_errors() as error:
            raise CodeError(_raised(error, source, "imported")) from error
    if not hasattr(module, name):
        public = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise UsageError(f"{what}={path!r}: there is no {name!r} in {source}{did_you_mean(name, public)}")
    return getattr(module, name)


def _load_file(file: Path, what: str) -> ModuleType:
    if not os.path.isfile(file):
        raise UsageError(f"{what}: the file {file} does not exist (looked in {Path.cwd()})")
    return _execute(file.resolve(), file.stat().st_mtime_ns)


@cache  # once for all envs of a run, and again if the file has changed
def _execute(file: Path, modified: int) -> ModuleType:
    digest = sha256(f"{modified} {file}".encode(errors="surrogateescape")).hexdigest()[:16]
    name = f"{LOADED}{digest}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (folder := str(file.parent)) not in sys.path:  # for modules beside it; at the end, so that they shadow no others
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except user_errors() as error:
        raise CodeError(_raised(error, str(file), "loaded")) from error
    return module


def _raised(error: BaseException, source: str, verb: str) -> str:
    """A message about the error in `source`, with its line."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}, line {error.lineno}"
    else:
        frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
        outside = [place for place in frames if not place[0].startswith("<frozen ") and place[0] != __file__]
        inside = [place for place in outside if place[0] == source] or outside
        place = f"{inside[-1][0]}, line {inside[-1][1]}" if inside else source
    return f"{source} raised {type(error).__name__} when it was {verb} ({place}): {error}"


def installed(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of installed packages in this group, by name."""
    from importlib.metadata import entry_points  # imported here: it takes a tenth of the command line's start-up time

    return {entry.name: entry for entry in entry_points(group=group)}


def load_entry(entry: EntryPoint, what: str) -> Any:
    """Load the object of an installed package's entry point."""
    try:
        return entry.load()
    except SurefootError:
        raise
    except user_errors() as error:
        raise UsageError(f"the {what} {entry.name} ({entry.value}) could not be loaded: {error!r}") from error
