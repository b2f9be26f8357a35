"""The architecture, held by reading every import: a module sees only lower layers."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import surefoot

PACKAGE = Path(surefoot.__file__).parent
LAYERS = {
    "schema": -2, "text": -2, "ranges": -2, "notebook": -1, "errors": -1, "schedules": -0.5, "user_code": 0,
    "settings": 0, "types": 0, "runs": 0, "drawing": 0.25, "loopback": 0, "patient_server": 0, "limits": 0,
    "analysis": 0.5,
    "math": 1, "kernels": 1, "spaces": 1,
    "policies": 2, "envs": 2,
    "engine": 3,
    "algorithms": 4,
    "training": 5, "theory": 5,
    "deploy": 6, "doctor": 6, "bench": 6, "sweep": 6, "timetravel": 6,
    "tuning": 6.5, "dashboard": 6.5,
    "api": 7,
    "course": 7.5,
    "conformance": 7.5,  # its own adapter uses the public API
    "cli": 8,
    "__main__": 9,
}  # fmt: skip
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part_of(dotted):
    """`surefoot.math.returns` -> `math`; None for what is not ours."""
    words = dotted.split(".")
    return words[1] if words[0] == "surefoot" and len(words) > 1 else None


def imports(path, *, run_time_only=False):
    """Names of imported modules, without those under `if TYPE_CHECKING` when only run time counts."""
    tree = ast.parse(path.read_text())
    skipped = set()
    if run_time_only:
        guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        skipped = {id(inner) for guard in guards for inner in ast.walk(guard)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (
                (f"{node.module}.{alias.name}" for alias in node.names) if node.module == "surefoot" else [node.module]
            )


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_lower_layers_or_its_own(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for dotted in imports(path):
        other = part_of(dotted)
        if other is None or other == own or other.startswith("__"):
            continue
        assert LAYERS[other] < LAYERS[own], f"{own} (layer {LAYERS[own]}) imports {other} (layer {LAYERS[other]})"


def test_every_folder_of_modules_is_a_package_that_git_and_the_build_see():
    """setuptools leaves out a folder without `__init__.py`, and an ignored folder loses its next new file."""
    assert not [folder for folder in {path.parent for path in MODULES} if not (folder / "__init__.py").is_file()]
    if shutil.which("git") is None:
        return
    words = ["git", "check-ignore", "--no-index", *map(str, MODULES)]
    ignored = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True)
    assert ignored.returncode == 128 or not ignored.stdout  # 128: no repository


def test_the_two_folders_of_layer_two_do_not_see_each_other():
    for path in MODULES:
        own = path.relative_to(PACKAGE).parts[0]
        if own in ("policies", "envs"):
            assert not {part_of(d) for d in imports(path)} & ({"policies", "envs"} - {own}), path


def test_no_engine_file_names_an_algorithm():
    for path in (PACKAGE / "engine").glob("*.py"):
        text = path.read_text().lower()
        for word in ("reinforce", "vpg", "a2c", "ppo"):
            assert not re.search(rf"(?<![a-z]){word}(?![a-z])", text), f"{path.name} says {word}"  # "support" is fine


@pytest.mark.parametrize(
    "pattern",
    [
        "runs/*.py",
        "analysis/*.py",
        "*/config.py",
        "algorithms/*.py",
        "cli/*.py",
        "settings.py",
        "types.py",
        "errors.py",
        "math/returns.py",
    ],
)
def test_config_runs_and_command_line_start_without_torch(pattern):
    for path in PACKAGE.glob(pattern):
        tree = ast.parse(path.read_text())
        top_level = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        for node in top_level:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            assert not any(name.split(".")[0] in ("torch", "gymnasium") for name in names), path


def test_nothing_is_ever_unpickled():
    for path in MODULES:
        for dotted in imports(path):
            assert dotted.split(".")[0] not in ("pickle", "cloudpickle", "dill", "joblib", "shelve"), path
        loads = re.findall(r"(?<!safetensors\.)\btorch\.load\(.*", path.read_text())
        if path == PACKAGE / "deploy/sb3/archive.py":  # a reader that knows tensors and refuses every other object
            assert len(loads) == 1
            assert "weights_only=True" in loads[0]
        else:
            assert not loads, path


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_printed_but_through_the_print_that_escapes(path):
    """What a stranger wrote (a name, an error of an env) must not reach a terminal raw; see `surefoot/text.py`."""
    tree = ast.parse(path.read_text())
    printing = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", None) == "print"]
    assert not printing or "surefoot.text" in set(imports(path)), f"{path}: from surefoot.text import print"
    written = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert not written & {"sys.stdout.write", "sys.stderr.write", "traceback.print_exc", "traceback.print_exception"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "algorithms").glob("*.py")), ids=lambda p: p.name)
def test_an_algorithm_fits_a_screen_or_so(path):
    if path.name not in ("__init__.py", "parts.py"):
        assert len(path.read_text().splitlines()) <= 120


def test_few_lines_say_any():
    """`Any` turns the type checker off. Typed dictionaries, protocols and `object` with a check say what is meant."""
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\bAny\b", line)
    ]
    assert len(found) < 150, found


SOURCES = [
    *MODULES,
    *sorted(PACKAGE.rglob("*.[ch]pp")),
    *sorted(PACKAGE.rglob("*.js")),
    *sorted(PACKAGE.rglob("*.css")),
]


def test_no_file_has_more_than_400_lines():
    long = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: lines for name, lines in long.items() if lines > 400}


def test_no_function_has_more_than_60_lines():
    long = {
        f"{path.relative_to(PACKAGE)}:{node.name}": lines
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > 60
    }
    assert not long


def test_no_docstring_opens_with_of_or_as():
    """Opening with "Of the slowest run" leaves the reader to guess what is meant: a docstring names its subject."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for path in MODULES:
        named = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            text = (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""
            if re.search(r"(^|\n\n)(Of|As)\b", text):
                found.append(f"{named}: {text.splitlines()[0]}")
    assert not found
