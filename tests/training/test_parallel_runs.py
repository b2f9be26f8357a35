"""Runs in parallel threads of one process: each is what it would have been alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.backends import cudnn

import surefoot
from surefoot.engine.precision import held_precision
from surefoot.engine.torch_threads import torch_threads
from surefoot.policies import layers
from surefoot.policies.config import PolicyConfig
from surefoot.policies.memory import without_cudnn
from surefoot.training.build.parts import initial_policy

RUNS, THREADS = 16, 8
SMALL = {"preset": "none", "progress": False, "num_envs": 2, "rollout_length": 16, "total_steps": 64, "threads": 1}
SMALL |= {"eval_episodes": 2, "eval_max_steps": 20, "log_every": 32, "num_minibatches": 2, "hidden_sizes": (16,)}


class Own(nn.Module):
    """Draws its weights as every module does: from PyTorch's global generator."""

    size = 8

    def __init__(self, layout):
        super().__init__()
        self.linear = nn.Linear(4, self.size)

    def forward(self, parts):
        return torch.tanh(self.linear(parts[""]))


def written(run):
    last = run.path / "checkpoints" / (run.path / "checkpoints" / "LATEST").read_text().strip()
    return [(run.path / "metrics.jsonl").read_bytes(), (last / "policy.safetensors").read_bytes(), run.result["eval"]]


ENGINES = {
    "native": {"engine": "native"},
    "torch": {"engine": "torch"},
    "memory": {"engine": "torch", "memory": "gru", "memory_size": 8},
    "own encoder": {"encoder": Own},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ENGINES)
def test_same_seed_same_bytes(name, tmp_path):
    def train(job):
        folder, seed = job
        where = tmp_path / folder / str(seed)
        return written(surefoot.train("CartPole-v1", run_dir=where, seed=seed, **SMALL, **ENGINES[name]))

    alone = [train(("alone", seed)) for seed in range(RUNS)]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(train, [("together", seed) for seed in range(RUNS)]))
    assert together == alone


SPACES = {
    "plain": (spaces.Box(-1, 1, (4,), np.float32), {}),
    "torch": (spaces.Box(-1, 1, (4,), np.float32), {"init": "torch", "memory": "lstm"}),
    "images": (spaces.Box(0, 255, (12, 12, 3), np.uint8), {"encoder": "impala"}),
    "choices": (spaces.Dict({"many": spaces.Discrete(99), "few": spaces.Discrete(3)}), {"memory": "gru"}),
    "own": (spaces.Box(-1, 1, (4,), np.float32), {"encoder": "<Own>"}),
}


@pytest.mark.parametrize("name", SPACES)
def test_first_weights_neither_read_nor_move_the_global_generator(name):
    space, settings = SPACES[name]

    def first():
        config, encoder = PolicyConfig(**settings), Own if name == "own" else None
        how = {"critic": True, "masked": False, "encoder": encoder}
        return initial_policy(space, spaces.Discrete(2), config, 5, **how).state_dict()

    torch.manual_seed(1)
    one, after = first(), torch.get_rng_state()
    torch.manual_seed(1)
    assert after.equal(torch.get_rng_state())
    torch.manual_seed(2)
    two = first()
    assert all(one[key].equal(two[key]) for key in one)


MADE = {
    "linear": (lambda draws: layers.linear(5, 7, draws), lambda: nn.Linear(5, 7)),
    "convolution": (
        lambda draws: layers.convolution(3, 6, 4, draws, stride=(2, 1), padding=1),
        lambda: nn.Conv2d(3, 6, 4, (2, 1), 1),
    ),
    "embedding": (lambda draws: layers.embedding(30, 6, draws), lambda: nn.Embedding(30, 6)),
    "gru": (lambda draws: layers.recurrent(layers.GRU, 5, 7, draws), lambda: nn.GRU(5, 7)),
    "lstm": (lambda draws: layers.recurrent(layers.LSTM, 5, 7, draws), lambda: nn.LSTM(5, 7)),
}


@pytest.mark.parametrize("name", MADE)
def test_our_layers_are_drawn_as_pytorch_draws_its_own(name):
    """To the bit, and as many numbers: runs of earlier versions began with those weights."""
    ours, theirs = MADE[name]
    draws = torch.Generator("cpu").manual_seed(4)
    torch.manual_seed(4)
    mine, expected = ours(draws), theirs()
    assert {key: x.tolist() for key, x in mine.state_dict().items()} == {
        key: x.tolist() for key, x in expected.state_dict().items()
    }
    assert draws.get_state().equal(torch.get_rng_state())
    assert [p.requires_grad for p in mine.parameters()] == [True] * len(expected.state_dict())


def test_threads_that_begin_meanwhile_do_not_leave_their_number_behind():
    threads = torch.get_num_threads()
    entered, leave = Event(), Event()

    def inside():
        with torch_threads(2):
            entered.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with torch_threads(3):
            other = pool.submit(inside)  # its PyTorch begins with 3
            assert entered.wait(60)
        leave.set()
        other.result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == threads


def test_what_several_threads_switch_off_stays_off_until_the_last_one_leaves():
    before, precision = cudnn.enabled, cudnn.conv.fp32_precision
    first, second = without_cudnn(), without_cudnn()
    one, two = held_precision("float32"), held_precision("float32")
    for held in (first, one, second, two):
        held.__enter__()
    for held in (first, one):
        held.__exit__(None, None, None)
    assert (cudnn.enabled, cudnn.conv.fp32_precision) == (False, "ieee")
    for held in (second, two):
        held.__exit__(None, None, None)
    assert (cudnn.enabled, cudnn.conv.fp32_precision) == (before, precision)
