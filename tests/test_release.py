"""tools/release.py: what stops a release is found, and a wheel is tried where no checkout is near."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import surefoot
from tests.kernels.test_building import copy_of_the_repository

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "tools" / "release.py").exists(), reason="not a checkout")


@pytest.fixture(scope="module")
def release():
    return runpy.run_path(str(ROOT / "tools" / "release.py"))


@pytest.fixture
def project(tmp_path):
    """The few files that a release reads, all of one version, committed."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    files = {
        "pyproject.toml": '[project]\nname = "surefoot"\nversion = "1.2.3"\n',
        "surefoot/__init__.py": '__version__ = "1.2.3"\n',
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
        "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2030-01-01)\n\n- All is new.\n\n## 1.2.2\n\n- Old\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def troubles(release, project, monkeypatch):
    monkeypatch.setitem(release["find_troubles"].__globals__, "_docs_troubles", lambda root: iter(()))
    return lambda: list(release["find_troubles"](project))


def test_a_project_of_one_version_may_be_released(troubles):
    assert troubles() == []


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "surefoot/__init__.py",
            "1.2.3",
            "1.2.4",
            "surefoot/__init__.py says version 1.2.4; pyproject.toml says 1.2.3",
        ),
        ("CITATION.cff", "\nversion: 1.2.3", "", "CITATION.cff says version nothing"),
        ("CHANGELOG.md", "## 1.2.3 (2030-01-01)\n\n- All is new.\n", "", "no section of 1.2.3"),
        ("CHANGELOG.md", "Unreleased\n", "Unreleased\n\n- One more thing.\n", "entries under Unreleased"),
    ],
)
def test_what_disagrees_stops_it(troubles, project, name, old, new, message):
    text = (project / name).read_text(encoding="utf-8")
    assert old in text
    (project / name).write_text(text.replace(old, new), encoding="utf-8")
    assert any(message in trouble for trouble in troubles())
    assert any("not committed" in trouble for trouble in troubles())


def test_a_version_is_released_once(troubles, project):
    subprocess.run(["git", "tag", "v1.2.3"], cwd=project, check=True)
    assert troubles() == []
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "two"]
    subprocess.run(["git", *commit], cwd=project, check=True)
    assert troubles() == ["v1.2.3 was released from another commit; raise the version"]


def test_this_repository_tells_one_version(release):
    assert release["version_of"](ROOT) == surefoot.__version__
    assert f"\nversion: {surefoot.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.fixture
def platform_wheel(tmp_path):
    """A wheel of this machine's platform that holds one library."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    (tmp_path / "one.c").write_text('#include <stdio.h>\nint one(void) { return puts("1"); }\n', encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "one.so", "one.c"], cwd=tmp_path, check=True)
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    wheel = tmp_path / f"one-1.0-{tag}.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "RECORD": "one/one.so,,\none-1.0.dist-info/METADATA,,\none-1.0.dist-info/WHEEL,,\none-1.0.dist-info/RECORD,,\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "one.so", "one/one.so")
        for name, text in about.items():
            archive.writestr(f"one-1.0.dist-info/{name}", text)
    return wheel


def test_a_wheel_gets_a_manylinux_tag(release, platform_wheel):
    pytest.importorskip("auditwheel")
    repaired = release["_for_any_linux"](platform_wheel)
    assert re.fullmatch(r"one-1\.0-py3-none-(manylinux\w+_\w+\.?)+\.whl", repaired.name)


def test_without_auditwheel_it_keeps_its_tag_and_says_so(release, platform_wheel, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert release["_for_any_linux"](platform_wheel) == platform_wheel
    assert "package indexes refuse: pip install auditwheel" in capsys.readouterr().out


def test_a_wheel_without_kernels_keeps_its_tag_and_says_so(release, tmp_path, capsys):
    wheel = tmp_path / "one-1.0-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("one/__init__.py", "")
    assert release["_for_any_linux"](wheel) == wheel
    assert "no kernel was built" in capsys.readouterr().out


@pytest.mark.slow
def test_the_wheel_of_the_sdist_works_in_a_clean_environment(tmp_path):
    """Without kernels, which other tests build: compiling them takes minutes, and all else must work without."""
    copy = copy_of_the_repository(tmp_path / "surefoot")
    words = [
        sys.executable,
        str(copy / "tools" / "release.py"),
        "--rehearse",
        "--offline",
        "--out",
        str(tmp_path / "dist"),
    ]
    env = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800)
    assert "✗ this is no git checkout" in done.stdout, done.stderr
    assert "built and tried:" in done.stdout, done.stdout + done.stderr
    assert "✓ surefoot train CartPole-v1" in done.stdout
    assert sorted(path.suffix for path in (tmp_path / "dist").iterdir()) == [".gz", ".whl"]
    assert done.returncode == 1  # it was a rehearsal
