"""The worked example of an algorithm of one's own: its loss by hand, kernels against PyTorch, and that it learns."""

import math
from pathlib import Path

import pytest
import torch

import surefoot
from surefoot.cli.main import main
from surefoot.user_code import load_object
from tests.building import CONTINUOUS, DISCRETE, make_batch, make_learner, make_outputs, make_policy, make_rollout

FILE = Path(__file__).parents[2] / "examples" / "spo.py"
NAME = f"{FILE}:SPO"
SPO = load_object(NAME, "algo")


def loss_of(ratio, advantage, epsilon=0.2):
    outputs = make_outputs([math.log(r) for r in ratio])
    outputs.log_prob.requires_grad_()
    algorithm = SPO(SPO.config_type(clip_ratio=epsilon, value_coef=0.0))
    loss, metrics = algorithm.loss(outputs, make_batch(advantage))
    (gradient,) = torch.autograd.grad(loss, outputs.log_prob)
    return loss.item(), gradient.tolist(), metrics


def test_the_loss_is_the_one_worked_out_by_hand():
    # r·Â − |Â|·(r − 1)²/0.4: 1.1 − 0.01/0.4 = 1.075; −3 − 2·0.25/0.4 = −4.25; 1 − 0 = 1; 0.5 − 0.25/0.4 = −0.125.
    loss, gradient, metrics = loss_of([1.1, 1.5, 1.0, 0.5], [1.0, -2.0, 1.0, 1.0])
    assert loss == pytest.approx(-(1.075 - 4.25 + 1.0 - 0.125) / 4)
    # d/d log r = r·(Â − |Â|·(r − 1)/0.2): 1.1·0.5 = 0.55; 1.5·(−2 − 5) = −10.5; 1; 0.5·(1 + 2.5) = 1.75.
    assert gradient == pytest.approx([-0.55 / 4, 10.5 / 4, -1.0 / 4, -1.75 / 4], rel=1e-5)
    assert metrics["clip_fraction"].item() == 0.5
    # (0.1 − ln 1.1 + 0.5 − ln 1.5 + 0 − 0.5 + ln 2) / 4
    expected = (0.1 - math.log(1.1 * 1.5 / 2.0)) / 4
    assert metrics["approx_kl"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_each_sample_is_led_to_epsilon_and_back_from_beyond_it(advantage):
    at = 1.0 + 0.2 * advantage
    assert loss_of([at], [advantage])[1] == pytest.approx([0.0], abs=1e-5)
    for beyond in (0.1, 0.5):
        assert loss_of([at + beyond], [advantage])[1][0] > 0.0  # down: descent lowers the ratio
        assert loss_of([at - beyond], [advantage])[1][0] < 0.0


def test_at_the_old_policy_its_gradient_is_the_policy_gradient():
    assert loss_of([1.0, 1.0], [3.0, -1.0])[1] == pytest.approx([-1.5, 0.5])


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "box"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_an_update_by_the_kernels_is_that_of_pytorch(space, memory):
    found = []
    for engine in ("torch", "native"):
        algorithm = SPO(SPO.config_type(num_envs=8, num_minibatches=4, entropy_coef=0.01))
        size = {} if memory == "none" else {"memory_size": 24}
        learner = make_learner(engine, make_policy(space, memory=memory, **size), algorithm, seed=1)
        for seed in range(2):
            rollout = make_rollout(learner.policy, steps=16, num_envs=8, seed=seed)
            learner.set_rates(1.0)
            metrics = algorithm.update(learner, rollout)
        assert learner.used == {engine}
        found.append((metrics, learner.flat.vector.clone()))
    (theirs, weights), (ours, vector) = found
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key
    assert (vector - weights).norm() < 2e-3 * weights.norm()


@pytest.mark.slow
def test_it_solves_cart_pole_natively(tmp_path):
    run = surefoot.train("CartPole-v1", NAME, total_steps=60_000, seed=0, progress=False, run_dir=tmp_path / "run")
    assert run.result["engine_reason"] == "engine native (the kernels serve this policy)"
    assert run.result["eval"]["mean_return"] > 475


def test_the_line_in_its_docstring_works(monkeypatch, capsys):
    monkeypatch.chdir(FILE.parents[1])
    (line,) = [line.strip() for line in FILE.read_text().splitlines() if line.strip().startswith("surefoot train")]
    assert main([*line.split()[1:], "--dry-run"]) == 0
    assert (
        "note: the preset CartPole-v1/ppo was made for ppo and is used for SPO, which has no" in capsys.readouterr().out
    )
