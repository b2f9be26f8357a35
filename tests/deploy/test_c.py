"""Exported C: it compiles without a warning, needs no library, and does what the policy does."""

import ctypes
import itertools
import re
import shutil
import subprocess
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.deploy.c.compiling import STRICT
from surefoot.deploy.c.exporter import CExporter
from surefoot.deploy.exporter import Wish
from surefoot.deploy.light_agent import LightAgent
from surefoot.deploy.trials import random_trials
from surefoot.errors import NonFiniteError, SurefootError, UsageError
from tests.combinations import MEMORY
from tests.deploy.making import BOX, CASES, FREE, KINDS, PIXELS, make, make_case, make_kind
from tests.marks import quick

COMPILERS = ("gcc", "clang")
SANITIZERS = (*STRICT, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
TRAPS = (*STRICT, "-fsanitize=undefined", "-fsanitize-trap=all")  # for a clang without the libraries of its sanitizers
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


def parity(policy, program, folder, *, seed=None, compiler="gcc", flags=STRICT, length=20):
    exporter, wish = CExporter(compiler, flags), Wish(seed=seed)
    for name, data in exporter.translate(program, wish).items():
        (folder / name).write_bytes(data)
    return exporter.check(folder, program, policy, random_trials(program, 10, length, seed=4), wish)


@cache
def sanitized(compiler):
    """Flags that stop a program at its first memory fault or undefined behaviour."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    if compiler == "gcc":
        return SANITIZERS
    with TemporaryDirectory() as folder:
        words = [compiler, *SANITIZERS, "-x", "c", "-", "-o", f"{folder}/out"]
        linked = subprocess.run(words, input=b"int main(void) { return 0; }", capture_output=True, check=False)
    return (*(TRAPS if linked.returncode else SANITIZERS), "-Wconversion")


def test_the_file_needs_no_library(tmp_path):
    """No call leaves it: not even the C library's."""
    _, program = make_kind("gsde-hybrid")
    for name, data in CExporter("gcc").translate(program, Wish(seed=1)).items():
        (tmp_path / name).write_bytes(data)
    flags = ["-std=c99", "-Wall", "-Werror", "-ffreestanding", "-O1", "-c"]
    subprocess.run(["gcc", *flags, "surefoot_policy.c"], cwd=tmp_path, check=True)
    listed = subprocess.run(["nm", "-u", "surefoot_policy.o"], cwd=tmp_path, capture_output=True, text=True, check=True)
    # A compiler may make a loop that copies a call of these, which even freestanding programs have.
    outside = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert outside <= {"memcpy", "memset", "memmove", "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("kind", ["beta-hybrid", "gsde-hybrid", "linear", "embedding", "small", "impala", "camera"])
@pytest.mark.parametrize("seed", [None, 5])
def test_no_memory_fault_and_no_undefined_behaviour(compiler, kind, seed, tmp_path):
    flags = sanitized(compiler)
    found = parity(*make_kind(kind), tmp_path, compiler=compiler, flags=flags, seed=seed, length=3)
    assert found.passed, found


@pytest.mark.slow
def test_a_wrong_weight_is_noticed(tmp_path):
    policy, program = make_kind("tanh")
    exporter, wish = CExporter("gcc"), Wish()
    files = dict(exporter.translate(program, wish))
    source = files["surefoot_policy.c"].decode()
    weight = re.search(r"-?0\.\d+f", source)
    files["surefoot_policy.c"] = (source[: weight.start()] + "2.5f" + source[weight.end() :]).encode()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert not exporter.check(tmp_path, program, policy, random_trials(program, 4, 10, seed=0), wish).passed


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["beta-hybrid", "gsde-hybrid", "state-std", "small"])
def test_processors_without_doubles(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(CExporter, "tolerance", 2e-5)
    found = parity(*make_kind(kind), tmp_path, flags=(*STRICT, "-DSUREFOOT_REAL=float"), seed=3)
    assert found.passed, found


def test_the_sanitizers_see_a_fault(tmp_path):
    """A file that reads behind an array, built with the same flags, does not pass."""
    policy, program = make_kind("tanh")
    exporter, wish = CExporter("gcc", sanitized("gcc")), Wish()
    for name, data in exporter.translate(program, wish).items():
        text = data.decode()
        if name == "surefoot_policy.c":
            text = text.replace("    return 0;\n}\n", "    return state->params[mask ? 0 : 9] > 1e30f;\n}\n")
        (tmp_path / name).write_text(text)
    with pytest.raises(SurefootError, match="index 9 out of bounds"):
        exporter.check(tmp_path, program, policy, random_trials(program, 2, 2, seed=0), wish)


@pytest.mark.slow
def test_it_compiles_to_webassembly(tmp_path):
    if shutil.which("clang") is None:
        pytest.skip("there is no clang")
    _, program = make_kind("gsde-hybrid")
    for name, data in CExporter("gcc").translate(program, Wish(seed=1)).items():
        (tmp_path / name).write_bytes(data)
    flags = ["--target=wasm32", "-ffreestanding", "-std=c99", "-Wall", "-Werror", "-O2", "-c"]
    subprocess.run(["clang", *flags, "surefoot_policy.c"], cwd=tmp_path, check=True)
    assert (tmp_path / "surefoot_policy.o").read_bytes().startswith(b"\0asm")


@pytest.mark.slow
def test_a_network_for_atari(tmp_path):
    """The network of Pong, with 1.7 million weights, sanitized: its arrays are the largest that there are."""
    policy, program = make(PIXELS, spaces.Discrete(6))
    found = parity(policy, program, tmp_path, length=4, flags=sanitized("gcc"))
    assert found.observations == 40
    assert found.passed, found


def test_an_observation_that_is_not_finite_changes_neither_action_nor_memory(tmp_path):
    _, program = make(FREE, BOX, memory="gru", memory_size=5, activation="relu", normalize_observations=True)
    light = LightAgent(program)
    for name, data in CExporter("gcc").translate(program, Wish()).items():
        (tmp_path / name).write_bytes(data)
    subprocess.run(["gcc", "-shared", "-fPIC", "surefoot_policy.c", "-o", "policy.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "policy.so"))
    obs, state, action = np.ones(3, np.float32), np.zeros(4096, np.float32), np.zeros(2, np.float32)

    def step():
        return library.surefoot_policy_step(obs.ctypes.data, None, state.ctypes.data, action.ctypes.data)

    library.surefoot_policy_step.argtypes = [ctypes.c_void_p] * 4
    library.surefoot_policy_begin(state.ctypes.data_as(ctypes.c_void_p))
    assert step() == 0
    before, memory = action.copy(), state[:5].copy()
    for number, wrong in itertools.product(range(3), (np.nan, np.inf, -np.inf)):
        obs[:] = 1
        obs[number] = wrong
        try:
            light.predict(obs, memory)
        except NonFiniteError:
            assert step() == 1
            np.testing.assert_array_equal(action, before)
            np.testing.assert_array_equal(state[:5], memory)
        else:  # an infinite number is clipped by the normaliser
            assert not np.isnan(wrong)
    obs[:] = 1
    assert step() == 0
    np.testing.assert_allclose(action, light.predict(obs, memory)[0], atol=1e-6)


def test_the_header_says_what_each_number_is():
    _, program = make_case("nested", "hybrid", "none", False)
    header = CExporter("gcc").translate(program, Wish())["surefoot_policy.h"].decode()
    assert (
        "   observation 0 to 2: body/arm\n   observation 3: body/grip/0\n   observation 4 to 5: body/grip/1\n" in header
    )
    assert "   action 0 to 1: move\n   action 2: use */" in header


def test_no_text_of_a_run_can_break_out_of_a_comment():
    _, program = make_kind("tanh")
    evil = '*/ int main(void) { system("x"); } /* ??/\\\n // "\u202e\x00'
    for text in CExporter("gcc").translate(program, Wish(about=evil)).values():
        first = text.decode("ascii").splitlines()[0]
        assert first.count("*/") == 1
        assert first.endswith("*/")
    keys = spaces.Dict({evil.replace("/", "*"): FREE})
    _, program = make(keys, spaces.Dict({evil: BOX}), hidden_sizes=(4,))
    header = CExporter("gcc").translate(program, Wish())["surefoot_policy.h"].decode("ascii")
    assert "system(" in header  # as harmless text
    assert "*/ int" not in header
    assert header.count("*/") == header.count("/*")


@pytest.mark.parametrize("name", ["", "Policy", "a-b", "a b", "1a", "a;b", "a\n", "é", "x" * 70])
def test_a_name_must_be_one_for_c(name):
    _, program = make_kind("tanh")
    with pytest.raises(UsageError, match="is not possible: use small letters"):
        CExporter("gcc").translate(program, Wish(name=name))


def name(number):
    return "-".join(map(str, CASES[number]))


@pytest.mark.parametrize("number", quick(range(len(CASES)), CASES.index(("Dict", "hybrid", "gru", True))), ids=name)
def test_every_pair_of_spaces_memory_and_mask(number, tmp_path):
    """Sanitized, and both compilers see every pair. `test_c_native.py` has the usual flags."""
    compiler = COMPILERS[MEMORY.index(CASES[number][2]) % 2]
    found = parity(*make_case(*CASES[number]), tmp_path, compiler=compiler, flags=sanitized(compiler))
    assert found.observations == 200
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "gsde-hybrid", "privileged"))
def test_every_kind_of_head_and_network(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path)
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "beta-hybrid"))
def test_drawn_actions_are_those_of_the_same_noise(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path, seed=2**40 + 7)
    assert found.passed, found
