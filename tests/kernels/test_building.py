"""setup.py with compilers of all kinds, most of them scripts: what is built, what is written down, what is said."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from surefoot.cli import installation
from surefoot.kernels import library, recipe
from surefoot.kernels.structs import SHARED

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (REPOSITORY / "setup.py").exists(), reason="not a checkout")
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="about the variants of x86-64")
# A compiler that makes an empty file of anything, in no time.
QUICK = """#!/bin/sh
case "$*" in *--version*) echo "quick 1.0"; exit 0;; esac
{before}
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""
OLD_GCC = """#!/bin/sh
case "$*" in *-march=x86-64-v*) echo "error: bad value for -march= switch" >&2; exit 1;; esac
exec g++ "$@" -O0
"""


def left_out(folder, names):
    """What is made rather than written. The packages `surefoot/runs` and `surefoot/training/build` are written."""
    made = shutil.ignore_patterns(".*", "__pycache__", "*.so", "build.json", "*.egg-info")(folder, names)
    here = {REPOSITORY: {"build", "dist", "runs", "MUJOCO_LOG.TXT"}, REPOSITORY / "docs": {"reference", "course"}}
    return made | (here.get(Path(folder), set()) & set(names))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the repository, to build in."""
    return copy_of_the_repository(tmp_path_factory.mktemp("copy") / "surefoot")


def copy_of_the_repository(target):
    shutil.copytree(REPOSITORY, target, ignore=left_out)
    for name in (".ci", ".github", ".gitignore", ".pre-commit-config.yaml"):
        source = REPOSITORY / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / name)
    return target


@pytest.fixture(autouse=True)
def _unforced(monkeypatch):
    monkeypatch.delenv(library.FORCED, raising=False)


def compiler(folder, text):
    script = folder / "compiler"
    script.write_text(text)
    script.chmod(0o755)
    return {**os.environ, "CC": str(script), "CXX": str(script)}


def build(checkout, tmp_path, env):
    """The folder with the libraries."""
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "-b",
        str(tmp_path / "made"),
        "-t",
        str(tmp_path / "temp"),
    ]
    subprocess.run(command, cwd=checkout, env=env, check=True, capture_output=True, timeout=600)
    return tmp_path / "made" / "surefoot" / "kernels"


def names(folder):
    return sorted(path.name for path in folder.glob("_*.so"))


@pytest.fixture
def placed(monkeypatch):
    """Makes the loader look into another folder."""
    forget = library.load.cache_clear

    def place(folder):
        monkeypatch.setattr(library, "__file__", str(folder / "library.py"))
        forget()

    yield place
    forget()


def test_every_variant_has_a_name_without_a_python_and_a_line_in_the_record(checkout, tmp_path):
    folder = build(checkout, tmp_path, compiler(tmp_path, QUICK.format(before="")))
    assert names(folder) == sorted(["_classic.so", *(f"_nn_{name}.so" for name in recipe.variants())])
    record = json.loads((folder / "build.json").read_text())
    assert record["compiler"] == "quick 1.0"
    assert record["libraries"] == {name.removesuffix(".so"): None for name in names(folder)}


@on_x86
def test_the_flags_are_those_of_the_level(checkout, tmp_path):
    log = tmp_path / "log"
    build(checkout, tmp_path, compiler(tmp_path, QUICK.format(before=f'echo "$*" >> {log}')))
    flags = {}
    for line in log.read_text().splitlines():
        for name in recipe.X86:
            if f"/_nn_{name}/" in line and " -c " in line:
                flags[name] = {word for word in line.split() if word.startswith("-m")}
    assert flags["base"] == set()
    assert "-mfma" not in flags["v2"]
    assert flags["v2"] < flags["v3"] < flags["v4"]


@on_x86
def test_a_compiler_without_avx512_leaves_that_variant_out_and_it_is_said_why(checkout, tmp_path, placed, monkeypatch):
    refuse = 'case "$*" in *-mavx512*) echo "nn.cpp: error: unknown option -mavx512f" >&2; exit 1;; esac'
    folder = build(checkout, tmp_path, compiler(tmp_path, QUICK.format(before=refuse)))
    assert names(folder) == ["_classic.so", "_nn_base.so", "_nn_v2.so", "_nn_v3.so"]
    placed(folder)
    trouble = library.build_record()["libraries"]["_nn_v4"]
    assert "error: unknown option -mavx512f" in trouble
    monkeypatch.setattr(library, "features", lambda: frozenset(recipe.X86["v4"]))
    assert library.find("nn").name == "_nn_v3.so"
    monkeypatch.setattr(library, "load", lambda name: None)
    assert "the v3 kernels serve, because those for v4 were not built" in library.complaints()[0]
    monkeypatch.setenv("SUREFOOT_KERNELS", "v4")
    with pytest.raises(library.UsageError, match=r"v4: that variant was not built \(v3, v2, base of them were\)"):
        library.find("nn")


@pytest.mark.parametrize("how", ["fails", "is not there"])
def test_a_compiler_that_fails_is_no_secret(how, checkout, tmp_path, placed):
    before = 'echo "In file included from a.hpp" >&2; echo "a.hpp:1:10: fatal error: no <new>" >&2; exit 1'
    env = compiler(tmp_path, QUICK.format(before=before))
    if how == "is not there":
        (tmp_path / "compiler").unlink()
    folder = build(checkout, tmp_path, env)
    assert names(folder) == []
    placed(folder)
    with pytest.raises(library.NotBuilt, match="fatal error: no <new>" if how == "fails" else "No such file") as said:
        library.load("nn")
    assert "could not be built" in str(said.value)
    assert "native kernels" in library.complaints()[0]
    report = "\n".join(installation.describe(installation.examine()))
    assert "PyTorch does everything" in report
    assert "_nn_base could not be built" in report or "_nn_neon could not be built" in report
    assert ("a.hpp:1:10: fatal error: no <new>" if how == "fails" else "No such file") in report


@pytest.mark.slow
@on_x86
def test_an_older_gcc_builds_every_variant(checkout, tmp_path, placed):
    """One that does not know `-march=x86-64-v3`."""
    folder = build(checkout, tmp_path, compiler(tmp_path, OLD_GCC))
    assert names(folder) == ["_classic.so", "_nn_base.so", "_nn_v2.so", "_nn_v3.so", "_nn_v4.so"]
    placed(folder)
    assert library.load("classic") is not None
    assert library.facts()["variant"] == next(
        n for n, needed in library.VARIANTS.items() if needed <= library.features()
    )


def test_the_wheel_is_for_any_python_and_has_what_a_user_needs(checkout, tmp_path):
    code = f"import setuptools.build_meta as backend; backend.build_wheel({str(tmp_path)!r})"
    env = compiler(tmp_path, QUICK.format(before=""))
    subprocess.run([sys.executable, "-c", code], cwd=checkout, env=env, check=True, capture_output=True, timeout=600)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    inside = zipfile.ZipFile(wheel).namelist()
    assert {"surefoot/kernels/build.json", "surefoot/kernels/_classic.so", "surefoot/py.typed"} <= set(inside)
    assert "surefoot/training/config/presets/CartPole-v1/ppo.toml" in inside
    assert {"surefoot/runs/run.py", "surefoot/training/build/__init__.py"} <= set(inside)
    assert not [name for name in inside if "/src/" in name or name.startswith(("tests", "benchmarks", "docs"))]
    assert not [name for name in inside if "cpython" in name]


def test_the_sdist_has_everything_that_the_repository_has(checkout, tmp_path):
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True, timeout=600)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    here = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    made = {name for name in here if name.endswith((".so", "build.json", ".pyc")) or ".egg-info/" in name}
    assert here - made - {name for name in here if name.startswith("build/")} <= inside
    assert {"constraints.txt", ".ci/run", "surefoot/kernels/src/nn.cpp", "docs/runs.md"} <= inside
    assert not [name for name in inside if name.endswith((".so", "build.json"))]


def test_a_build_for_another_python_is_not_picked_up_and_goes_away(checkout, tmp_path, placed):
    stale = tmp_path / "stale"
    stale.mkdir()
    for name in ("_nn_base", "_nn_v2", "_nn_v3", "_classic"):
        (stale / f"{name}.cpython-39-x86_64-linux-gnu.so").touch()
    placed(stale)
    for name in ("nn", "classic"):
        with pytest.raises(library.NotBuilt, match="not built"):
            library.find(name)
    inside = tmp_path / "made" / "surefoot" / "kernels"
    inside.parent.mkdir(parents=True)
    stale.rename(inside)
    folder = build(checkout, tmp_path, compiler(tmp_path, QUICK.format(before="")))
    assert not [name for name in names(folder) if "cpython" in name]


def test_a_library_that_lays_out_a_structure_otherwise_is_refused(monkeypatch):
    library.load.cache_clear()
    kind = SHARED[-1]

    class Stored(library.ctypes.Structure):
        _fields_ = (*kind._fields_[1:], kind._fields_[0])  # the same size

    monkeypatch.setattr("surefoot.kernels.structs.SHARED", (*SHARED[:-1], Stored))
    try:
        with pytest.raises(library.NotBuilt, match=r"of another version: Stored\{numbers:0\+8"):
            library.load("nn")
    finally:
        library.load.cache_clear()


def test_every_structure_of_the_library_is_compared():
    library.load("nn").sf_layout.restype = library.ctypes.c_char_p
    said = library.load("nn").sf_layout().decode()
    assert [text.partition("{")[0] for text in said.split(";") if text] == [kind.__name__ for kind in SHARED]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("v9", "SUREFOOT_KERNELS=v9 is not a variant of the native kernels here; available: v4, v3, v2, base"),
        ("v3", "SUREFOOT_KERNELS=v3: this processor lacks abm, avx, avx2"),
    ],
)
@on_x86
def test_a_variant_that_cannot_be_forced_is_an_error(value, message, monkeypatch):
    monkeypatch.setenv("SUREFOOT_KERNELS", value)
    monkeypatch.setattr(library, "features", lambda: frozenset(recipe.X86["v2"]))
    with pytest.raises(library.UsageError, match=message):
        library.find("nn")


@on_x86
@pytest.mark.parametrize(("able", "variant"), [({}, "base"), ({"sse4_2"}, "base"), (recipe.V2, "v2")])
def test_an_old_processor_gets_kernels_too(able, variant, monkeypatch):
    monkeypatch.setattr(library, "features", lambda: frozenset(able))
    assert library.find("nn").stem == f"_nn_{variant}"


def test_arm_has_one_variant_and_other_machines_a_plain_one():
    assert recipe.variants("aarch64") == recipe.variants("arm64") == {"neon": {}}
    assert recipe.variants("riscv64") == {"base": {}}
    assert recipe.variants("AMD64") is recipe.X86


def test_the_installation_report_knows_every_extra():
    import tomllib

    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(installation.EXTRAS) == set(extras) - {"dev"}
