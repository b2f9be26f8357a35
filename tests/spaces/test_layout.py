"""Any observation as one row, and back."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from surefoot.errors import UsageError
from surefoot.spaces.layout import Layout

BOX = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Discrete(5, start=-2), spaces.Dict({"x": BOX, "y": spaces.MultiBinary((2, 2))})]),
        "a": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, -3]]),
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    }
)
SPACES = [
    BOX,
    spaces.Box(-1.0, 1.0, (), np.float64),
    spaces.Box(0, 255, (84, 84), np.uint8),
    spaces.Discrete(7, start=3),
    spaces.MultiDiscrete([2, 9], start=[5, -5]),
    spaces.MultiBinary(4),
    spaces.Tuple([BOX, spaces.Discrete(3)]),
    NESTED,
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_value_survives_its_row(space):
    space.seed(0)
    layout = Layout(space)
    for _ in range(20):
        value = space.sample()
        row = layout.pack(value)
        assert row.shape == layout.shape
        back = layout.unpack(row)
        assert back in space
        assert layout.pack(back).tolist() == row.tolist()
        np.testing.assert_equal(space.to_jsonable([back]), space.to_jsonable([value]))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_batch_is_packed_like_its_members(space):
    batch = batch_space(space, 3)
    batch.seed(0)
    from gymnasium.vector.utils import iterate

    values = batch.sample()
    layout = Layout(space)
    rows = layout.pack_batch(values, 3)
    for row, value in zip(rows, iterate(batch, values), strict=True):
        np.testing.assert_array_equal(row, layout.pack(value))
    assert layout.count(values) == 3
    assert layout.count(next(iter(iterate(batch, values)))) is None


def test_leaves_stand_in_the_order_of_the_space():
    layout = Layout(NESTED)
    assert [leaf.path for leaf in layout.leaves] == ["a", "b/0", "b/1/x", "b/1/y", "camera"]
    assert [leaf.kind for leaf in layout.leaves] == ["multi_discrete", "discrete", "vector", "binary", "image"]
    assert [leaf.offset for leaf in layout.leaves] == [0, 4, 5, 11, 15]
    assert layout.shape == (15 + 60,)
    assert layout.leaves[0].sizes == (3, 4, 5, 6)


def test_choices_count_from_zero_in_a_row():
    assert Layout(spaces.Discrete(7, start=3)).pack(5).tolist() == [2.0]
    assert Layout(spaces.MultiDiscrete([2, 9], start=[5, -5])).pack(np.array([6, -5])).tolist() == [1.0, 0.0]


def test_parts_are_views_with_any_leading_axes():
    layout = Layout(NESTED)
    rows = torch.arange(2 * 3 * 75, dtype=torch.float32).view(2, 3, 75)
    parts = layout.parts(rows)
    assert {path: tuple(part.shape) for path, part in parts.items()} == {
        "a": (2, 3, 2, 2),
        "b/0": (2, 3),
        "b/1/x": (2, 3, 2, 3),
        "b/1/y": (2, 3, 2, 2),
        "camera": (2, 3, 4, 5, 3),
    }
    assert parts["b/0"][1, 2] == rows[1, 2, 4]


def test_a_single_box_is_its_own_row():
    image = Layout(spaces.Box(0, 255, (84, 84, 3), np.uint8))
    assert (image.plain, image.shape, image.dtype) == (True, (84, 84, 3), np.uint8)
    vector = Layout(spaces.Box(-1.0, 1.0, (3,), np.float64))
    assert (vector.plain, vector.dtype) == (True, np.float32)


def test_a_mask_stands_at_the_end_and_is_no_observation():
    layout = Layout(BOX, mask_size=3)
    row = layout.pack(np.zeros((2, 3)), np.array([True, False, True]))
    assert row.tolist() == [0.0] * 6 + [1.0, 0.0, 1.0]
    assert row[layout.mask].tolist() == [1.0, 0.0, 1.0]
    assert row[layout.learned].tolist() == [0.0] * 6


def test_a_mask_within_a_dict_observation_is_not_seen_twice():
    space = spaces.Dict({"action_mask": spaces.Box(0, 1, (3,), np.int8), "x": spaces.Box(-1.0, 1.0, (2,))})
    layout = Layout(space, mask_size=3)
    assert [leaf.path for leaf in layout.leaves] == ["x"]
    row = layout.pack({"action_mask": np.array([1, 0, 1], np.int8), "x": np.array([0.5, 0.25])})
    assert row.tolist() == [0.5, 0.25, 1.0, 0.0, 1.0]
    assert len(Layout(space).leaves) == 2  # where nothing can be masked it is an observation like any other


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 1, (0,)), "empty"),
        (spaces.Dict({}), "empty"),
        (spaces.Text(5), "Text, which has no fixed size"),
        (spaces.Dict({"g": spaces.Sequence(spaces.Discrete(2))}), "g is a Sequence"),
        (spaces.Discrete(2**25), "more than 16,777,216 choices"),
        (spaces.Box(0, 1, (2, 2, 2, 2, 2)), "5 axes"),
        (spaces.Dict({"a/b": BOX}), "has a '/'"),
    ],
)
def test_what_cannot_be_a_row_is_refused_with_a_reason(space, message):
    with pytest.raises(UsageError, match=message):
        Layout(space)


def test_a_wrong_shape_is_never_broadcast():
    with pytest.raises(ValueError, match=r"'b/1/x' has the shape \(1,\); its space says \(2, 3\)"):
        Layout(NESTED).pack({**NESTED.sample(), "b": (0, {"x": np.zeros(1), "y": np.zeros((2, 2))})})
    with pytest.raises(ValueError, match=r"an observation has the shape \(3,\)"):
        Layout(BOX).pack(np.zeros(3))
