"""Runs an adapter's functions: `python child.py ADAPTER.py`, in the adapter's own Python environment.

Reads requests from stdin and writes answers to stdout, one JSON object per line. Stands alone: needs only NumPy and
Gymnasium, not surefoot.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version

FUNCTIONS = ("values", "vector_values", "advantages", "kl", "first_ratio", "resume")
NUM_ENVS = 4  # in the vector env
COMMON = ("torch", "numpy", "gymnasium")
ERRORS = (Exception, SystemExit)  # sys.exit() in an adapter must not end the other checks


def main(adapter: str) -> None:
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the adapter must not read our requests,
    os.dup2(2, 1)  # nor may what it prints get between our answers
    beside = os.path.dirname(os.path.abspath(__file__))
    # The adapter finds the files beside it, last of all: it may be called like the library that it imports.
    sys.path[:] = [*sys.path[1:], os.path.dirname(os.path.abspath(adapter))]

    def reply(answer: dict[str, object]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        tasks = load(os.path.join(beside, "tasks.py"), "surefoot_conformance_tasks")
        module = load(os.path.abspath(adapter), "surefoot_conformance_adapter")
    except ERRORS as error:
        reply({"error": told(error, adapter)})
        return
    reply({"answer": about(module)})
    for line in requests:
        try:
            reply({"answer": answer_to(json.loads(line), module, tasks)})
        except ERRORS as error:
            reply({"error": told(error, adapter)})


def load(path: str, name: str) -> dict[str, object]:
    """The names that a file defines. It is kept in `sys.modules`, where pickle and others look for its classes."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return vars(module)


def about(module: dict[str, object]) -> dict[str, object]:
    """What the adapter offers, and the versions that it runs with."""
    packages, notes = module.get("PACKAGES", ()), module.get("NOTES", {})
    if not isinstance(packages, (list, tuple)) or not all(isinstance(name, str) for name in packages):
        raise TypeError("PACKAGES must be a list of names")
    if not isinstance(notes, dict) or not all(isinstance(text, str) for pair in notes.items() for text in pair):
        raise TypeError("NOTES must be a dict from the names of checks to texts")
    versions = {"python": platform.python_version()}
    for name in (*packages, *COMMON):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    own = [name for name, value in module.items() if callable(value) and not name.startswith("_")]
    return {"functions": [name for name in FUNCTIONS if name in own], "own": own, "versions": versions, "notes": notes}


def answer_to(request: dict[str, object], module: dict[str, object], tasks: dict[str, object]) -> object:
    """Call the function with the task's maker, the arrays and the folder, in this order, and its options by name."""
    import numpy as np

    name, arrays, options = request["function"], request["arrays"], request["options"]
    assert isinstance(name, str)
    assert isinstance(arrays, list)
    assert isinstance(options, dict)
    arguments: list[object] = [np.array(array) for array in arrays]
    if "task" in request:
        task = tasks[str(request["task"])]
        arguments.insert(0, many(task) if name == "vector_values" else task)
    if "folder" in request:
        arguments.append(request["folder"])
    function = module[name]
    assert callable(function)
    found = function(*arguments, **options)
    if isinstance(found, (tuple, list)) and found and all(isinstance(text, str) for text in found):
        return list(found)
    return np.asarray(found, np.float64).tolist()


def many(task: object) -> object:
    """A function that makes Gymnasium's own vector env, which resets an env in the step after an episode's last."""
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    return lambda: SyncVectorEnv([task] * NUM_ENVS, autoreset_mode=AutoresetMode.NEXT_STEP)  # type: ignore[list-item]


def told(error: BaseException, adapter: str) -> str:
    """The error in one line, with the adapter's own line if it is in the traceback."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if os.path.abspath(frame.filename) == os.path.abspath(adapter):
            line = frame.lineno
    where = f" ({os.path.basename(adapter)}, line {line})" if line else ""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}{where}"


if __name__ == "__main__":
    main(sys.argv[1])
