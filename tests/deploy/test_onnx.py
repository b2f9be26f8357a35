"""Exported ONNX models do what the policy does, in onnxruntime."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from surefoot.cli.main import main
from surefoot.deploy import exporting
from surefoot.deploy.exporter import Wish
from surefoot.deploy.onnx.exporter import OnnxExporter
from surefoot.deploy.trials import random_trials
from surefoot.training.evaluation.agent import Agent
from tests.deploy.making import CASES, KINDS, make_case, make_kind
from tests.marks import quick

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RUNS = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0"


def parity(policy, program, folder, seed=None):
    exporter, wish = OnnxExporter(), Wish(seed=seed)
    for name, data in exporter.translate(program, wish).items():
        (folder / name).write_bytes(data)
    return exporter.check(folder, program, policy, random_trials(program, 5, 20, seed=4), wish)


def name(number):
    return "-".join(map(str, CASES[number]))


@pytest.mark.parametrize("number", quick(range(len(CASES)), CASES.index(("Dict", "hybrid", "gru", True))), ids=name)
def test_every_pair_of_spaces_memory_and_mask(number, tmp_path):
    found = parity(*make_case(*CASES[number]), tmp_path)
    assert found.observations == 100
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "gsde-hybrid", "beta-hybrid", "privileged"))
def test_every_kind_of_head_and_network(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path)
    assert found.passed, found


@pytest.mark.parametrize("kind", quick(KINDS, "gsde-hybrid", "beta-hybrid", "bits"))
def test_drawn_actions_are_those_of_the_same_noise(kind, tmp_path):
    found = parity(*make_kind(kind), tmp_path, seed=6)
    assert found.passed, found


def test_draws_follow_the_distribution():
    policy, program = make_case("flat", "Discrete", "none", False)
    (data,) = OnnxExporter().translate(program, Wish(seed=0)).values()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    obs = np.repeat(np.array([[0.5, -1.0, 2.0]], np.float32), 20_000, 0)
    random = np.random.default_rng(0).random((20_000, 3), np.float32)
    (drawn,) = session.run(["action"], {"observation": obs, "random": random})
    chances = Agent(policy).probabilities(obs[0])
    np.testing.assert_allclose(np.bincount(drawn - 2, minlength=3) / 20_000, chances, atol=0.02)


def test_names_shapes_and_any_batch(tmp_path):
    _, program = make_case("nested", "hybrid", "gru", True)
    (data,) = OnnxExporter().translate(program, Wish()).values()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    inputs = {value.name: (value.type, value.shape) for value in session.get_inputs()}
    assert inputs == {
        "observation/body/arm": ("tensor(float)", ["N", 3]),
        "observation/body/grip/0": ("tensor(int64)", ["N"]),
        "observation/body/grip/1": ("tensor(int64)", ["N", 2]),
        "observation/camera": ("tensor(uint8)", ["N", 6, 6, 1]),
        "action_mask": ("tensor(bool)", ["N", 3]),
        "memory": ("tensor(float)", ["N", 6]),
    }
    outputs = {value.name: (value.type, value.shape) for value in session.get_outputs()}
    assert outputs == {
        "action/move": ("tensor(float)", ["N", 2]),
        "action/use": ("tensor(int64)", ["N"]),
        "parameters": ("tensor(float)", ["N", 7]),
        "memory_out": ("tensor(float)", ["N", 6]),
    }
    for count in (1, 3):
        feed = {
            name: np.ones(
                [count, *shape[1:]],
                {"tensor(float)": "f4", "tensor(int64)": "i8", "tensor(uint8)": "u1"}.get(kind, "?"),
            )
            for name, (kind, shape) in inputs.items()
        }
        move, use, _, memory = session.run(list(outputs), feed)
        assert (move.shape, use.shape, memory.shape) == ((count, 2), (count,), (count, 6))


def test_the_command(capsys, monkeypatch):
    monkeypatch.setattr(exporting, "OBSERVATIONS", 320)
    shutil.copytree(RUNS / "ppo-gru", "run")
    assert main(["export", "run", "--to", "onnx"]) == 0
    assert "parity on 320 recorded observations: parameters within " in capsys.readouterr().out
    (folder,) = Path("run/exports").iterdir()
    assert {file.name for file in folder.iterdir()} == {"surefoot_policy.onnx", "parity.json", "run_manifest.json"}
    assert main(["export", "run", "--to", "onnx", "--stochastic"]) == 0
