"""Random orders without sorting, in Triton's interpreter."""

import os

import numpy as np
import pytest
import torch

from surefoot.engine.torch.permutation import ROUNDS, feistel, halves, permutation

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported


def drawn(seed):
    return torch.randint(0, 2**32, (ROUNDS,), generator=torch.Generator().manual_seed(seed), dtype=torch.int64)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 100, 1025])
def test_the_kernel_gives_the_order_of_its_twin(size):
    pytest.importorskip("triton")
    from surefoot.kernels.fused_shuffle import shuffled

    keys = drawn(size)
    assert shuffled(size, keys, halves(size)).tolist() == feistel(size, keys.tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 255, 256, 257, 1000, 5000])
def test_every_sample_has_one_place(size):
    assert sorted(feistel(size, drawn(7).tolist())) == list(range(size))


def test_every_sample_is_in_every_minibatch_equally_often():
    """χ² of (sample, minibatch) over many orders, and of which neighbours stay together."""
    size, parts, orders = 64, 4, 600
    counts, together = np.zeros((size, parts)), 0
    for seed in range(orders):
        minibatch = np.argsort(feistel(size, drawn(seed).tolist())) // (size // parts)
        counts[np.arange(size), minibatch] += 1
        together += int((minibatch[1:] == minibatch[:-1]).sum())
    expected = orders / parts
    chi = ((counts - expected) ** 2 / expected).sum()
    freedom = size * (parts - 1)
    assert abs(chi - freedom) < 5.0 * (2.0 * freedom) ** 0.5
    share, expected_share = together / (orders * (size - 1)), (size / parts - 1) / (size - 1)
    assert abs(share - expected_share) < 0.01


def test_a_cpu_draws_the_order_that_it_always_drew():
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    assert torch.equal(permutation(100, one), torch.randperm(100, generator=other))
