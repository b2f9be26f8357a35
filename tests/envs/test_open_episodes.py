"""Open episodes as a checkpoint holds them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.envs.open_episodes import OpenEpisodes, close_all, kept
from surefoot.errors import EnvError

HYBRID = spaces.Dict(move=spaces.Box(-1.0, 1.0, (2,), np.float32), use=spaces.Discrete(3, start=1))


def env(actions, *, episode=4, steps=None):
    return SimpleNamespace(episode=episode, steps=len(actions) if steps is None else steps, actions=actions)


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return np.array_equal(left, right)


@pytest.mark.parametrize("agents", [False, True])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(5, start=2), spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.MultiBinary(4), HYBRID]
)
def test_actions_come_back_as_they_were(space, agents):
    space.seed(0)
    played = [[space.sample() for _ in range(3)] if agents else space.sample() for _ in range(6)]
    made = OpenEpisodes(space, agents=agents)
    state = made.state_dict([env(played), env([], episode=0)])
    episode, actions = made.read(state, 0)
    assert episode == 4
    for before, after in zip(played, actions, strict=True):
        assert all(map(same, before, after)) if agents else same(before, after)
    assert made.read(state, 1) == (0, [])
    json.dumps([state["episode"], state["steps"]])


def test_an_episode_that_was_too_long_to_remember_is_not_known():
    made = OpenEpisodes(spaces.Discrete(2))
    assert made.read(made.state_dict([env([0, 1], steps=3)]), 0) == (4, None)


def test_what_is_kept_does_not_change_with_the_original():
    action = {"move": np.zeros(2), "use": 1}
    copied, row = kept(action), kept(action["move"])
    action["move"] += 1.0
    assert copied["move"].tolist() == row.tolist() == [0.0, 0.0]


def test_all_are_closed_before_one_complains():
    closed = []

    class Closing:
        def __init__(self, number):
            self.number = number

        def __str__(self):
            return f"env {self.number}"

        def close(self):
            closed.append(self.number)
            if self.number == 1:
                raise KeyError("mine")

    with pytest.raises(EnvError, match="close of env 1 raised KeyError: 'mine'") as caught:
        close_all([Closing(0), Closing(1), Closing(2)])
    assert closed == [0, 1, 2]
    assert isinstance(caught.value.__cause__, KeyError)
