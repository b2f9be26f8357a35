"""Runs that earlier versions made load, evaluate and resume. `tests/fixtures/make_runs.py` tells how they were made."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot
from surefoot.kernels.library import VARIANTS, NotBuilt, features, find
from surefoot.runs import RunDirectory
from surefoot.runs.files import read_json

ROOT = Path(__file__).parent
FOLDERS = sorted((ROOT / "fixtures").glob("runs-*"))
CASES = [(folder, name) for folder in FOLDERS for name in json.loads((folder / "expected.json").read_text())]
REPOSITORY = ROOT.parent


def case_id(case):
    return f"{case[0].name}/{case[1]}"


@pytest.fixture(params=CASES, ids=map(case_id, CASES))
def old(request, tmp_path):
    """A copy of a committed run."""
    folder, name = request.param
    shutil.copytree(folder / name, tmp_path / name)
    return surefoot.Run(RunDirectory(tmp_path / name))


def test_it_loads_and_evaluates(old):
    agent = surefoot.load(old)
    found = surefoot.evaluate(agent, old.config["env"], episodes=3, seed=5, max_steps=50)
    assert found.episodes == 3


def test_its_rows_are_read(old):
    assert [row["step"] for row in old.metrics] == sorted(row["step"] for row in old.metrics)
    assert old.metrics
    assert old.result["algo"] == old.config["algo"]


def resumed(folder, names, target):
    """Digests of copies that a process of its own resumed, kernels forced to the variant that made them."""
    for name in names:
        shutil.copytree(folder / name, target / name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fixtures.resume_runs", str(target), *names],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def same_versions(folder, name):
    """Whether bytes can be the same: the same PyTorch and NumPy, and the kernels' forced variant."""
    then = read_json(folder / name / "manifest.json")["versions"]
    now = {"torch": surefoot_torch(), "numpy": __import__("numpy").__version__}
    return all(then[package] == version for package, version in now.items())


def surefoot_torch():
    import torch

    return torch.__version__


def has_variant():
    try:
        return platform.machine() == "x86_64" and VARIANTS["v2"] <= features() and find("nn") is not None
    except NotBuilt:
        return False


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_they_resume_to_the_same_bytes(folder, tmp_path):
    """To the bytes that the version which began them would have written, where the kernels learn."""
    expected = json.loads((folder / "expected.json").read_text())
    unfinished = [name for name in expected if read_json(folder / name / "status.json")["state"] == "interrupted"]
    assert len(unfinished) > 10
    found = resumed(folder, unfinished, tmp_path)
    for name in unfinished:
        assert found[name]["step"] == expected[name]["step"], name
        native = read_json(folder / name / "manifest.json")["engine"] == "native"
        if native and has_variant() and same_versions(folder, name):
            assert found[name] == expected[name], name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_one_that_was_done_goes_on(folder, tmp_path):
    shutil.copytree(folder / "ppo-target", tmp_path / "run")
    run = surefoot.resume(tmp_path / "run", total_steps=2048, progress=False)
    assert run.result["total_steps"] == 2048
