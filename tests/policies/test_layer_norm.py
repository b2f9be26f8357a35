"""Layer normalisation in MLPs: by hand, against torch.nn, and through training."""

import math

import pytest
import torch
from safetensors.torch import load_file

import surefoot
from surefoot.policies.mlp import MLP
from tests.building import make_policy


def test_a_hidden_layer_by_hand():
    """z = (1, 3): mean 2, variance 1, so ±1/√(1 + 1e-5); gain 2 and bias 0.5; ReLU; then the sum."""
    net = MLP([2, 2, 1], "relu", layer_norm=True)
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.eye(2))
        net.layers[0].bias.zero_()
        net.norms[0].weight.fill_(2.0)
        net.norms[0].bias.fill_(0.5)
        net.head.weight.fill_(1.0)
        net.head.bias.zero_()
    one = 1.0 / math.sqrt(1.0 + 1e-5)
    assert net(torch.tensor([[1.0, 3.0]])).item() == pytest.approx(2.0 * one + 0.5)  # relu(0.5 − 2·one) = 0
    assert net.hidden(torch.tensor([[1.0, 3.0]]))[0].tolist() == pytest.approx([0.0, 2.0 * one + 0.5])


@pytest.mark.parametrize("trunk", [False, True])
def test_it_is_that_of_torch_nn_and_the_head_has_none(trunk):
    net = MLP([4, 8, 6, 3], "tanh", layer_norm=True, activate_last=trunk)
    modules = []
    for at, layer in enumerate(net.layers):
        modules += [layer] + ([net.norms[at], torch.nn.Tanh()] if at < 2 or trunk else [])
    x = torch.randn(5, 4)
    torch.testing.assert_close(net(x), torch.nn.Sequential(*modules)(x))
    assert len(net.norms) == (3 if trunk else 2)


def test_off_it_adds_no_parameters_and_draws_nothing():
    plain, normed = make_policy(), make_policy(layer_norm=True)
    assert {name for name, _ in normed.named_parameters()} - {name for name, _ in plain.named_parameters()} == {
        f"{part}.norms.{at}.{what}" for part in ("actor", "critic") for at in (0, 1) for what in ("weight", "bias")
    }
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, normed.get_parameter(name))


SHORT = {"preset": "none", "seed": 1, "progress": False, "rollout_length": 32, "eval_episodes": 2, "layer_norm": True}


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("algo", ["ppo", pytest.param("trpo", marks=pytest.mark.slow)])
def test_it_trains_and_resumes(algo, engine, tmp_path):
    """TRPO needs its second derivatives."""
    more = SHORT | {"engine": engine}
    whole = surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "whole", total_steps=1024, **more)
    assert whole.result["learning"] == engine
    surefoot.train("CartPole-v1", algo, run_dir=tmp_path / "half", total_steps=512, **more)
    longer = surefoot.resume(tmp_path / "half", total_steps=1024, progress=False)
    last = [next(run.path.glob("checkpoints/*1024/policy.safetensors")) for run in (whole, longer)]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algo", ["ppo", pytest.param("trpo", marks=pytest.mark.slow)])
def test_both_engines_learn_the_same(algo, env, tmp_path):
    """One update from the same weights and noise ends at the same weights, up to rounding. TRPO's conjugate gradients
    amplify it, here more than elsewhere: a normalised layer does not depend on the scale of its weights, so the Fisher
    matrix is singular."""
    close = 1e-5 if algo == "ppo" else 1e-3
    runs = [
        surefoot.train(env, algo, run_dir=tmp_path / engine, total_steps=256, engine=engine, **SHORT)
        for engine in ("native", "torch")
    ]
    native, torchs = (load_file(next(run.path.glob("checkpoints/*/policy.safetensors"))) for run in runs)
    assert any("norms" in name for name in native)
    for name, tensor in native.items():
        torch.testing.assert_close(tensor, torchs[name], rtol=0.0, atol=close, msg=name)
