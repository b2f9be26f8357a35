"""Stored actions as their env takes them: members of the space, to the bounds and not beyond."""

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.spaces.sending import sender

BOX = spaces.Box(np.array([[-2.0, 0.5]], np.float32), np.array([[3.0, 0.6]], np.float32))


@pytest.mark.parametrize(
    ("space", "stored", "sent"),
    [
        (spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]), [[0, 2], [1, 1]], [[[1, 2]], [[2, 1]]]),
        (spaces.MultiBinary((1, 2)), [[0, 1], [1, 1]], [[[0, 1]], [[1, 1]]]),
    ],
)
def test_choices_are_counted_as_the_env_counts(space, stored, sent):
    found = sender(space)(np.array(stored, np.int64))
    assert found.tolist() == sent
    assert found.dtype == space.dtype
    assert all(space.contains(one) for one in found)


@pytest.mark.parametrize(
    ("bounds", "stored", "sent"),
    [
        ("clip", [[-9.0, 0.55]], [-2.0, 0.55]),
        ("tanh", [[0.0, 50.0]], [0.5, 0.6]),
        ("beta", [[0.5, 0.0]], [0.5, 0.5]),
    ],
)
def test_numbers_are_brought_into_the_bounds(bounds, stored, sent):
    found = sender(BOX, bounds)(np.array(stored, np.float32))
    assert found.dtype == np.float32
    assert found.shape == (1, 1, 2)
    assert BOX.contains(found[0])
    assert found.ravel() == pytest.approx(sent)


def test_one_number_has_no_axis():
    assert sender(spaces.Box(-1, 1, (), np.float64))(np.zeros((4, 1), np.float32)).shape == (4,)
