"""Kernels in a forked child: threads do not survive a fork, so the child makes its own."""

import os

import numpy as np
import pytest
import torch

from surefoot.engine.fast import describe
from surefoot.engine.flat import FlatParameters
from surefoot.kernels.network import Network
from tests.building import make_policy


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads is what is tested
def test_a_forked_child_computes_the_same():
    policy = make_policy()
    theta = FlatParameters(policy).vector
    net, x = Network(describe(policy), 2), torch.randn(200, 4)
    expected = net.values(theta, x).numpy()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            same = np.array_equal(net.values(theta, x).numpy(), expected)
            os.write(writing, b"same" if same else b"other")
        finally:
            os._exit(0)
    os.close(writing)
    found = os.read(reading, 10)
    os.close(reading)
    os.waitpid(child, 0)
    assert found == b"same"
