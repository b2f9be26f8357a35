"""PyTorch's threads are measured, and the run keeps the number."""

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import surefoot
from surefoot.cli.main import main
from surefoot.engine.torch import threads as module
from surefoot.engine.torch.threads import fastest_torch
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from tests.building import make_policy
from tests.faults.runs import opened


@pytest.fixture
def times(monkeypatch):
    """Seconds of a gradient step by threads, instead of the clock."""
    given = {}
    monkeypatch.setattr(module, "_time", lambda step: step() and given[torch.get_num_threads()])
    return given


@pytest.mark.parametrize(
    ("seconds", "most", "number", "why"),
    [
        ({1: 1.0, 2: 0.5, 4: 0.3}, 4, 4, "3.3 times as fast as one"),
        ({1: 1.0, 2: 0.5, 4: 0.49}, 4, 2, "2.0 times as fast as one"),
        ({1: 1.0, 2: 0.85}, 2, 1, "more are not faster"),  # too little to wait for each other
        ({1: 1.0, 2: 0.5}, 3, 2, "2.0 times as fast as one"),
        ({}, 1, 1, ""),
    ],
)
def test_as_many_as_pay(times, monkeypatch, seconds, most, number, why):
    times.update(seconds)
    monkeypatch.setattr(module, "SMALL", 0)
    assert fastest_torch(make_policy(spaces.Discrete(2)), 8, most) == (number, why)


def test_a_small_network_gets_one_thread_whatever_the_clock_says(times):
    """The bytes of a run depend on the number, so noise must not decide where threads cannot help."""
    times.update({1: 1.0, 2: 0.1})
    assert fastest_torch(make_policy(spaces.Discrete(2)), 64, 2) == (1, "")


class Careless(nn.Module):
    """Counts and draws."""

    def __init__(self, observation_space):
        super().__init__()
        self.size = 4
        self.layer = nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, observation):
        self.calls += 1
        return self.layer(observation[""]) + 0.0 * torch.rand(4)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))], ids=["discrete", "box"])
def test_measuring_leaves_no_trace(memory, action):
    config = PolicyConfig(encoder="tests:Careless", memory=memory, normalize_observations=True, action_bounds="tanh")
    if isinstance(action, spaces.Discrete):
        config = PolicyConfig(encoder="tests:Careless", memory=memory)
    policy = ActorCritic(spaces.Box(-1.0, 1.0, (3,)), action, config, masked=False, encoder=Careless)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    number, _ = fastest_torch(policy, 300, 2)
    assert number in (1, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert all(parameter.grad is None for parameter in policy.parameters())
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_masks_images_and_any_space_can_be_measured():
    space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (12, 12, 3), np.uint8), "n": spaces.Discrete(3), "x": spaces.Box(-1.0, 1.0, (2,))}
    )
    both = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))))
    policy = ActorCritic(space, both, PolicyConfig(), masked=True)
    assert fastest_torch(policy, 8, 2)[0] in (1, 2)


@pytest.mark.slow
def test_a_run_keeps_what_was_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("surefoot.engine.torch.engine.fastest_torch", lambda *_: (2, "2.0 times as fast as one"))
    words = ["train", "CartPole-v1", "--seed", "0", "--engine", "torch", "--total-steps", "128", "--eval-episodes", "0"]
    words += ["--num-envs", "2", "--rollout-length", "32", "--num-epochs", "2", "--log-every", "1", "--run-dir"]
    assert main([*words, str(tmp_path / "run")]) == 0
    assert "2 threads (2.0 times as fast as one)" in capsys.readouterr().out
    run = opened(tmp_path / "run")
    assert re.search(r"^threads = 2$", run.directory.config.read_text(), re.MULTILINE)
    monkeypatch.setattr("surefoot.engine.torch.engine.fastest_torch", None)  # nobody measures again
    first = run.metrics
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "256"]) == 0
    assert main([*words, str(tmp_path / "asked"), "--threads", "2"]) == 0
    assert "2 threads," in capsys.readouterr().out
    for row, twin in zip(first, opened(tmp_path / "asked").metrics, strict=True):
        assert row["policy_loss"] == twin["policy_loss"]


def test_a_run_on_the_kernels_leaves_it_open(tmp_path):
    settings = {"total_steps": 256, "num_envs": 2, "rollout_length": 64, "eval_episodes": 0, "progress": False}
    run = surefoot.train("CartPole-v1", "ppo", seed=0, run_dir=tmp_path / "run", engine="native", **settings)
    assert re.search(r"^threads = \"auto\"$", run.directory.config.read_text(), re.MULTILINE)
