import json

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.errors import UsageError
from surefoot.spaces.as_json import space_from_json, space_to_json


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4),
        spaces.Discrete(3, start=5),
        spaces.Discrete(3, start=-1),
        spaces.Box(-1.0, 1.0, (3,)),
        spaces.Box(-1.0, 1.0, ()),
        spaces.Box(0.1, 0.7, (2, 2), np.float64),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.array([-np.inf, 0.0, -1.0], np.float32), np.array([1 / 3, np.inf, 1.0], np.float32)),
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Box(-3, 3, (2,), np.int64),
    ],
    ids=str,
)
def test_a_space_survives_json_exactly(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    loaded = space_from_json(json.loads(text))
    assert loaded == space
    assert loaded.dtype == space.dtype
    if isinstance(space, spaces.Box):
        np.testing.assert_array_equal(loaded.low, space.low)
        np.testing.assert_array_equal(loaded.high, space.high)


def test_a_box_of_all_int64_survives_json_exactly():
    limits = np.iinfo(np.int64)
    space = spaces.Box(limits.min, limits.max, (1,), np.int64)
    np.testing.assert_array_equal(space_from_json(space_to_json(space)).high, space.high)


def test_the_bounds_are_written_without_rounding():
    bound = np.float32(0.1)
    assert space_to_json(spaces.Box(-bound, bound, (1,)))["high"] == [repr(float(bound))]


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_other_spaces_are_refused_by_name(space):
    with pytest.raises(UsageError, match=r"Text|Sequence"):
        space_to_json(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary((2, 3)),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, -1], [7, 2]]),
        spaces.Dict(
            {
                "b": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (8, 8, 3), np.uint8)]),
                "a": spaces.Box(-1, 1, (2,)),
            }
        ),
        spaces.Tuple([]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_nested_and_discrete_spaces_survive_too(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    assert space_from_json(json.loads(text)) == space
    assert len(text) < 1000  # an image's bounds are written once
