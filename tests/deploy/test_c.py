"""Exported C: it compiles without a warning, needs no library, and does what the policy does."""

import shutil
import subprocess

import numpy as np
import pytest

from surefoot.deploy.c.compiling import STRICT
from surefoot.deploy.c.exporter import CExporter
from surefoot.deploy.exporter import Wish
from surefoot.deploy.trials import random_trials
from tests.deploy.making import CASES, KINDS, make_case, make_kind
from tests.marks import quick

SANITIZED = (*STRICT, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


def parity(policy, program, folder, *, seed=None, compiler="gcc", flags=STRICT, length=20):
    exporter, wish = CExporter(compiler, flags), Wish(seed=seed)
    for name, data in exporter.translate(program, wish).items():
        (folder / name).write_bytes(data)
    return exporter.check(folder, program, policy, random_trials(program, 10, length, seed=4), wish)


def name(number):
    return "-".join(map(str, CASES[number]))


@pytest.mark.parametrize("number", quick(range(len(CASES)), 100), ids=name)
def test_every_pair_of_spaces_memory_and_mask(number, tmp_path):
    found = parity(*make_case(*CASES[number]), tmp_path)
    assert found.observations == 200
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "gsde-hybrid"))
def test_every_kind_of_head_and_network(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path)
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "beta-hybrid"))
def test_drawn_actions_are_those_of_the_same_noise(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path, seed=2**40 + 7)
    assert found.passed, found
