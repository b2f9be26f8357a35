"""The loop that plays episodes: which ones, in what order, and what whoever looks on sees of them."""

import numpy as np
import pytest

from surefoot.envs.playing import Abandoned, finished, play, spread
from surefoot.types import Step


class Counted:
    """Episode j lasts lengths[j] steps and pays its number; `agents` rows each, of which some come late or leave."""

    def __init__(self, lengths, num_envs=1, num_agents=1, comes=0):
        self.lengths, self.num_agents, self.comes = lengths, num_agents, comes
        self.num_envs, self.places = num_envs * num_agents, num_envs
        self.acting = np.zeros(self.num_envs, np.bool_)
        self.episode, self.time = [-1] * num_envs, [0] * num_envs
        self.calls = []

    def rows(self, place):
        return slice(place * self.num_agents, (place + 1) * self.num_agents)

    def begin(self, place, episode):
        self.calls.append(("begin", place, episode))
        self.episode[place], self.time[place] = episode, 0
        self.acting[self.rows(place)] = True
        if self.comes:
            self.acting[self.rows(place).stop - 1] = False

    def step(self, action, active=None):
        self.calls.append(("step", list(action), active.tolist()))
        reward, over = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        for place in range(self.places):
            rows = self.rows(place)
            if active[rows].any():
                self.time[place] += 1
                reward[rows] = self.episode[place] * active[rows]
                if self.time[place] == self.comes:
                    self.acting[rows.stop - 1] = True
                if self.time[place] >= self.lengths[self.episode[place]]:
                    over[rows], self.acting[rows] = True, False
        return Step(np.zeros((self.num_envs, 1)), reward, over, np.zeros_like(over), active.copy())


class Rows:
    """The action of a row is its number."""

    def __init__(self):
        self.begins = []

    def act(self, envs, rows, begins):
        self.begins.append(dict(zip(rows.tolist(), begins.tolist(), strict=True)))
        return rows.copy()


def played(envs, episodes, **how):
    return list(finished(play(envs, Rows(), episodes, **{"limit": 100, **how})))


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5])
def test_every_episode_is_played_once_and_to_its_end(num_envs):
    lengths = [7, 1, 3, 1, 5]
    found = sorted(played(Counted(lengths, num_envs), range(5)), key=lambda one: one.number)
    assert [(one.number, one.total, one.length, one.cut) for one in found] == [
        (number, float(number * length), length, False) for number, length in enumerate(lengths)
    ]


def test_which_env_plays_which_does_not_depend_on_how_long_they_last():
    envs = Counted([9, 1, 1, 1, 1, 1], 2)
    played(envs, range(6))
    begun = [call[1:] for call in envs.calls if call[0] == "begin"]
    assert sorted(begun) == [(0, 0), (0, 2), (0, 4), (1, 1), (1, 3), (1, 5)]


def test_fewer_episodes_than_envs_and_numbers_of_ones_own():
    envs = Counted({7: 2, 4: 1}, 3)
    assert [(one.number, one.length) for one in played(envs, [7, 4])] == [(4, 1), (7, 2)]
    assert [call[1:] for call in envs.calls if call[0] == "begin"] == [(0, 7), (1, 4)]


def test_an_episode_at_the_limit_is_cut_unless_it_ends_there():
    found = played(Counted([3, 4, 50], 1), range(3), limit=4)
    assert [(one.length, one.cut) for one in found] == [(3, False), (4, False), (4, True)]


def test_who_has_no_episode_left_does_not_act():
    envs = Counted([1, 3], 2)
    played(envs, range(2))
    assert [call[2] for call in envs.calls if call[0] == "step"] == [[True, True], [False, True], [False, True]]


def test_whoever_looks_on_sees_each_beginning_each_step_and_an_end_before_the_next_beginning():
    envs = Counted([2, 1], 1)
    turns = play(envs, Rows(), range(2), limit=9)
    assert [(turn.step is not None, turn.lengths.tolist(), len(turn.ended), envs.episode[0]) for turn in turns] == [
        (False, [0], 0, 0),
        (True, [1], 0, 0),
        (True, [2], 1, 0),
        (False, [0], 0, 1),
        (True, [1], 1, 1),
    ]


def test_actors_are_told_where_an_episode_begins():
    actor = Rows()
    list(play(Counted([1, 2, 1], 2), actor, range(3), limit=9))
    assert actor.begins == [{0: True, 1: True}, {0: True, 1: False}]


def test_the_return_of_several_agents_is_their_mean_and_a_latecomer_begins_late():
    envs, actor = Counted([4, 4], 1, num_agents=3, comes=2), Rows()
    (first, second) = finished(play(envs, actor, range(2), limit=9))
    assert (first.total, second.total) == (0.0, (4 + 4 + 2) / 3)
    assert (second.length, second.cut) == (4, False)
    assert [sorted(begins) for begins in actor.begins[:4]] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert [begins[2] for begins in actor.begins[2:4]] == [True, False]


def test_abandon_is_asked_before_every_step():
    envs, asked = Counted([5], 1), []

    def abandon():
        asked.append(envs.time[0])
        return len(asked) == 3

    with pytest.raises(Abandoned):
        played(envs, range(1), abandon=abandon)
    assert asked == [0, 1, 2]
    assert envs.time == [2]


def test_spread_actions_stand_at_their_rows():
    rows = np.array([0, 2])
    assert spread(np.array([[1.0], [2.0]], np.float32), rows, 3).tolist() == [[1.0], [0.0], [2.0]]
    assert spread([{"a": 1}, {"a": 2}], rows, 3) == [{"a": 1}, None, {"a": 2}]
    whole = np.arange(2)
    assert spread(whole, np.arange(2), 2) is whole
