"""State survives JSON and safetensors exactly."""

import json

import numpy as np
import pytest
import torch

from surefoot.training.loop.state_tree import join, split


def test_a_tree_comes_back_as_it_was():
    tree = {
        "plain": [1, 2.5, None, True, "text", 0.1 + 0.2],
        "nested": {"tensor": torch.arange(3), "list": [np.array([1.5, np.inf]), {"deep": torch.tensor(7.0)}]},
    }
    plain, tensors = split(tree)
    found = join(json.loads(json.dumps(plain)), tensors)
    assert found["plain"] == tree["plain"]
    assert torch.equal(found["nested"]["tensor"], torch.arange(3))
    assert found["nested"]["list"][0].tolist() == [1.5, np.inf]
    assert found["nested"]["list"][1]["deep"].item() == 7.0
    assert set(tensors) == {"nested.tensor", "nested.list.0", "nested.list.1.deep"}


def test_saved_arrays_do_not_follow_later_changes():
    array = np.zeros(2)
    _, tensors = split({"a": array})
    array[:] = 1.0
    assert tensors["a"].tolist() == [0.0, 0.0]


def test_what_cannot_be_saved_is_named():
    with pytest.raises(TypeError, match=r"a\.b: a object cannot be saved"):
        split({"a": {"b": object()}})
