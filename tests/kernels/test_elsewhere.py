"""The kernels on other machines: recorded calls, made again with the libraries of other compilers, also emulated."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.kernels import library
from surefoot.kernels.recipe import variants

HERE, REPOSITORY = Path(__file__).parent, Path(__file__).parents[2]
SOURCES = REPOSITORY / "surefoot" / "kernels" / "src"
COMMON = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread"]
NETWORKS = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi"]
DYNAMICS = ["-ffp-contract=off"]
# What a machine needs: its compiler, and what runs its programs here.
MACHINES = {
    "x86-64 with GCC": ("g++", []),
    "x86-64 with Clang": ("clang++", []),
    "arm64 with GCC": ("aarch64-linux-gnu-g++", ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("base" not in variants(), reason="recorded with the base variant"),
]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A file of calls."""
    folder = tmp_path_factory.mktemp("record")
    subprocess.run(
        [sys.executable, "-m", "tests.kernels.recording", "calls"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", library.FORCED: "base"},
        cwd=folder,
        check=True,
        timeout=600,
    )
    return folder / "calls"


def built(folder, compiler):
    """(the program, its libraries) as this compiler makes them."""
    program, networks, dynamics = folder / "replay", folder / "nn.so", folder / "classic.so"
    for words in (
        ["-std=c++17", "-O1", str(HERE / "replay.cpp"), "-o", str(program), "-ldl"],
        [*COMMON, *NETWORKS, str(SOURCES / "nn.cpp"), "-o", str(networks)],
        [*COMMON, *DYNAMICS, str(SOURCES / "classic.cpp"), "-o", str(dynamics)],
    ):
        subprocess.run([compiler, *words], check=True, timeout=600)
    return program, networks, dynamics


@pytest.mark.parametrize("machine", MACHINES)
def test_recorded_calls_give_the_same_numbers_there(machine, record, tmp_path):
    compiler, emulator = MACHINES[machine]
    for needed in (compiler, *emulator[:1]):
        if shutil.which(needed) is None:
            pytest.skip(f"needs {needed}")
    command = [*emulator, *map(str, built(tmp_path, compiler))]
    command.insert(-2, str(record))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("sf_gradient", "sf_epochs", "sf_fisher_product", "sf_rollout", "sf_recur_back", "sf_act"):
        assert name in done.stdout
    if machine == "x86-64 with GCC":  # a wrong number is noticed
        _spoil(record, tmp_path / "spoiled")
        command[-3] = str(tmp_path / "spoiled")
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 1
        assert "differs" in done.stdout


def _spoil(record, target):
    """A few bits among the last numbers that are compared, which stand before the arguments of the last call."""
    data = bytearray(record.read_bytes())
    for at in range(len(data) - 240, len(data) - 200):
        data[at] ^= 0x40
    target.write_bytes(data)
