"""What fails inside the compiled libraries is an exception in Python, never the end of the process."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surefoot.kernels import classic, handle, library, meeting, network, recurrent, rollout, scan, stored
from surefoot.kernels.classic import KINDS, ClassicEnvs, classic_library
from surefoot.kernels.description import Description, HeadPart, Linear
from surefoot.kernels.heads import CATEGORICAL
from surefoot.kernels.network import Network

SOURCES = Path(library.__file__).parent / "src"
REPOSITORY = Path(__file__).parents[2]
PREFIXES = {"nn": "sf_", "classic": "surefoot_classic_"}
TEXTS = {
    "surefoot_sources",
    "surefoot_error",
    "surefoot_compiler",
    "sf_layout",
    "sf_surrogates",
}  # which return what lies there
DECLARED = {
    "nn": [part.SIGNATURES for part in (handle, network, rollout, stored, scan, recurrent, meeting)],
    "classic": [classic.SIGNATURES],
}


def declared(name):
    return {PREFIXES[name] + function for table in DECLARED[name] for function in table}


@pytest.mark.parametrize("name", DECLARED)
def test_every_entry_point_is_guarded_and_declared(name):
    text = (SOURCES / f"{name}.cpp").read_text().partition('extern "C" {')[2]
    functions = re.findall(r"^(?:EXPORT )?[\w:]+(?: \w+)?[ *&]+(\w+)\([^{;]*\) \{(.*)\n?(.*)", text, re.MULTILINE)
    bodies = {function: first + second for function, first, second in functions}
    assert bodies.keys() >= {"surefoot_sources", "surefoot_error"}
    for function, body in bodies.items():
        if function not in TEXTS:
            assert body.strip().startswith("return guarded([&] {"), function
    assert bodies.keys() - TEXTS == declared(name)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm lists what a library exports")
@pytest.mark.parametrize("name", DECLARED)
def test_nothing_else_is_exported(name):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library.find(name)], capture_output=True, text=True, check=True
    )
    symbols = {line.split()[-1] for line in listed.stdout.splitlines()}
    ours = {symbol for symbol in symbols if symbol.startswith(("sf_", "surefoot_"))}
    assert ours - TEXTS == declared(name)


def test_what_is_not_declared_cannot_be_called():
    with pytest.raises(AttributeError, match="not declared"):
        classic_library().surefoot_sources()


def test_networks_and_envs_larger_than_any_memory():
    huge = [Linear(2**22, 2**24, 0, 0, activated=True), Linear(2**24, 2, 0, 0, activated=False)]
    head = [HeadPart(CATEGORICAL, 2, 0, 0, 0, 0)]
    with pytest.raises(MemoryError, match="sf_create"):
        Network(Description(2**22, 0, "tanh", [], huge, [], head, 10, 10, 0))
    with pytest.raises(MemoryError, match="surefoot_classic_create"):
        ClassicEnvs(classic_library(), KINDS["CartPole"], 2**50, 0)


def test_what_is_not_memory_says_what_it_is():
    x = np.zeros(1)
    with pytest.raises(RuntimeError, match="surefoot_classic_function: there is no such function"):
        classic_library().function(99, x.ctypes.data, x.ctypes.data, 1)


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """What `tests/kernels/failing.py` prints."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        pytest.skip("a library of our own cannot be preloaded here")
    folder = tmp_path_factory.mktemp("failing")
    made, source = folder / "faults.so", Path(__file__).with_name("faults.cpp")
    subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-shared", source, "-o", made, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.failing", made, folder],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(made)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_allocation_that_fails_anywhere_is_a_memory_error(failing):
    """On any thread, between any barriers; the next call is as good as ever."""
    assert {name: wrong for name, (_, wrong) in failing["calls"].items() if wrong} == {}
    assert all(failures for failures, _ in failing["calls"].values()), failing["calls"]


@pytest.mark.slow
def test_a_run_without_memory_ends_with_advice(failing):
    for code, said in failing["runs"]:
        assert code == 1
        assert "out of memory: no memory for the native kernels" in said
        assert "try fewer envs (--num-envs)" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_fewer_threads_than_asked_for_are_a_note(failing):
    threads, same = failing["threads"]["net"]
    assert threads == 2
    assert same
    for engine in ("native", "torch"):
        code, said = failing["threads"][engine]
        assert code == 0, said
        assert "1 thread (2 were asked for; the system refused more)" in said
