"""Spaces without Gymnasium, and what a forged description of one can be."""

import json
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.spaces import plain
from surefoot.spaces.as_json import space_from_json, space_to_json
from surefoot.spaces.layout import Layout
from surefoot.spaces.of_gym import gym_space, plain_space
from surefoot.spaces.rows import RowLayout
from tests.spaces.test_layout import SPACES


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_rows_are_the_same_with_and_without_gymnasium(space):
    read = plain.from_json(json.loads(json.dumps(space_to_json(space))))
    left, right = Layout(space), RowLayout(read)
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    space.seed(0)
    value = space.sample()
    np.testing.assert_array_equal(left.pack(value), right.pack(value))
    assert gym_space(read) == space == gym_space(plain_space(space))


def test_the_order_of_a_dict_survives():
    """Gymnasium sorts the keys of a dict; a space that was made in another order must come back in that order."""
    box = spaces.Box(-1.0, 1.0, (1,))
    space = spaces.Dict(OrderedDict(b=box, a=spaces.Discrete(2)))
    assert [leaf.path for leaf in Layout(space).leaves] == ["b", "a"]
    back = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert [leaf.path for leaf in Layout(back).leaves] == ["b", "a"]


BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": ["-1.0"], "high": ["1.0"]}
FORGED = [
    {},
    {"type": "Text"},
    {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
    {"type": "Discrete", "n": 2.5, "start": 0, "dtype": "int64"},
    {"type": "Discrete", "n": 10**30, "start": 0, "dtype": "int64"},
    {"type": "Discrete", "n": 2, "start": 0, "dtype": "object"},
    {"type": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
    {**BOX, "shape": [2**40]},
    {**BOX, "shape": [-2]},
    {**BOX, "shape": "x"},
    {**BOX, "low": ["nan"]},
    {**BOX, "low": ["2.0"]},
    {**BOX, "low": [0.0, 0.0, 0.0]},
    {**BOX, "dtype": "O"},
    {"type": "MultiDiscrete", "nvec": [2, 0], "start": [0, 0], "dtype": "int64"},
    {"type": "MultiDiscrete", "nvec": [2, [3]], "start": [0, 0], "dtype": "int64"},
    {"type": "MultiDiscrete", "nvec": [2], "start": [0, 0], "dtype": "int64"},
    {"type": "MultiDiscrete", "nvec": ["2"], "start": [0], "dtype": "int64"},
    {"type": "MultiBinary", "shape": [2**40]},
    {"type": "Dict", "spaces": [["a", BOX], ["a", BOX]]},
    {"type": "Dict", "spaces": [[1, BOX]]},
    {"type": "Dict", "spaces": [["a"]]},
    {"type": "Tuple", "spaces": 5},
]


@pytest.mark.parametrize("data", FORGED, ids=lambda data: json.dumps(data)[:60])
def test_forged_spaces_are_refused(data):
    with pytest.raises((ValueError, TypeError, KeyError, UsageError)):
        plain.from_json(data)
