"""What envs hand out as an action mask, as one row of booleans."""

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.spaces.masks import ActionMasks, choices

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
HYBRID = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "jump": spaces.Discrete(3), "use": spaces.MultiDiscrete([2, 4])})


def test_masks_of_every_form():
    assert choices(HYBRID) == (3, 2, 4)
    masks = ActionMasks(HYBRID)
    flat = [1, 0, 1, 1, 1, 0, 0, 1, 0]
    for given in (
        np.array(flat, np.int8),
        {"jump": [1, 0, 1], "use": ([1, 1], [0, 0, 1, 0])},
        {"jump": np.array([True, False, True]), "use": np.array([1, 1, 0, 0, 1, 0])},
    ):
        assert masks.flat(given).tolist() == [bool(x) for x in flat]
    assert masks.flat({"jump": [1, 0, 1]}).tolist() == [True, False, True] + [True] * 6
    assert ActionMasks(spaces.Box(-1, 1, (2,))).size == 0


def test_masks_of_the_wrong_size_or_without_a_legal_action_are_refused():
    with pytest.raises(ValueError, match="the action mask has 2 entries; 3 choices are expected"):
        ActionMasks(spaces.Discrete(3)).flat([1, 0])
    with pytest.raises(ValueError, match=r"no legal action$"):
        ActionMasks(spaces.Discrete(3)).flat([0, 0, 0])
    with pytest.raises(ValueError, match="no legal action for component 2"):
        ActionMasks(HYBRID).flat([1, 0, 1, 1, 1, 0, 0, 0, 0])


ROW = [True, False, True, True, False]


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (spaces.Discrete(5), np.array([1, 0, 1, 1, 0], np.int8)),
        (spaces.Discrete(5), np.array(ROW)),
        (spaces.Discrete(5), [1, 0, 1, 1, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0, 1, 1, 0], np.int8)),
        (spaces.MultiDiscrete([2, 3]), (np.array([1, 0]), np.array([1, 1, 0]))),
        (spaces.MultiDiscrete([[2], [3]]), ((np.array([1, 0]),), (np.array([1, 1, 0]),))),
        (spaces.Tuple([spaces.Discrete(2), BOX, spaces.Discrete(3)]), np.array(ROW)),
        (spaces.Tuple([spaces.Discrete(2), BOX, spaces.Discrete(3)]), ([1, 0], None, [1, 1, 0])),
        (spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Discrete(2)}), {"b": [1, 1, 0], "a": [1, 0]}),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3), "c": BOX}), {"b": [1, 1, 0], "a": [1, 0]}),
        (
            spaces.Dict({"a": spaces.Tuple([BOX, spaces.Discrete(2)]), "b": spaces.MultiDiscrete([3])}),
            {"a": (None, [1, 0]), "b": (np.array([1, 1, 0]),)},
        ),
    ],
)
def test_masks_as_envs_hand_them_out(space, mask):
    row = ActionMasks(space).flat(mask)
    assert row.dtype == np.bool_
    assert row.tolist() == ROW


def test_a_mask_is_a_copy_and_none_is_all_legal():
    masks = ActionMasks(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
    given = np.array(ROW)
    row = masks.flat(given)
    given[:] = False
    assert row.tolist() == ROW
    assert masks.flat((None, [0, 1, 0])).tolist() == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("space", "mask", "words"),
    [
        (spaces.Discrete(3), [1, 0], "2 entries; 3 choices"),
        (spaces.Discrete(3), np.array([1, 0, 2]), "other than 0 and 1"),
        (spaces.MultiDiscrete([2, 3]), np.ones(6), "6 entries; 5 choices"),
        (spaces.MultiDiscrete([2, 3]), (np.ones(3), np.ones(2)), "3 entries; 2 choices"),
        (spaces.MultiDiscrete([2, 3]), (np.ones(3),), "1 parts; the action space has 2"),
        (spaces.MultiDiscrete([2, 3]), {"a": 1}, "dict"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [1, 1]}, r"\['b'\]; the action space has \['a'\]"),
        (spaces.Dict({"a": spaces.Discrete(2)}), np.ones(3), "3 entries; 2 choices"),
        (spaces.Tuple([spaces.Discrete(2)]), (np.ones(2), np.ones(2)), "2 parts; the action space has 1"),
        (spaces.Tuple([spaces.Discrete(2)]), {"a": np.ones(2)}, "dict; it must be flat"),
    ],
)
def test_wrong_masks_are_refused_with_what_was_expected(space, mask, words):
    with pytest.raises(ValueError, match=words):
        ActionMasks(space).flat(mask)
